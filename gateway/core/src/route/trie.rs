//! The index of the paths: a tree by segments. Entries go in by ascending precedence number, and the least that is
//! accepted comes out.

use std::collections::HashMap;
use std::num::NonZero;

use foldhash::fast::FixedState;
use smallvec::SmallVec;

use crate::matcher::{PathMatch, Segment};

/// Number of an entry, which is its precedence: the least goes first.
pub(super) type Entry = u32;

/// Position of a node in the tree.
pub(super) type NodeId = u32;

/// A segment; a short one lies in its node or map itself, which spares a cache miss.
type Key = SmallVec<[u8; 16]>;

/// A forest: one tree per host, all in one place.
#[derive(Debug, Default)]
pub(super) struct Trie {
    nodes: Vec<Node>,
}

/// Kept within a cache line, as a search in a large tree finds every node cold.
#[derive(Debug)]
struct Node {
    /// What may follow literally.
    literals: Literals,
    /// What follows for any segment that is not empty.
    param: Option<NonZero<NodeId>>,
    /// The least entry here or below, by which a search knows what it may skip.
    least: Entry,
    /// The entries that lead here, in ascending order.
    here: SmallVec<[(Entry, Reach); 2]>,
}

/// The literal children of a node. Most nodes have none or one and need no map.
#[derive(Debug, Default)]
enum Literals {
    #[default]
    None,
    One(Key, NodeId),
    /// The keys are the operator's, so that clients cannot provoke collisions.
    #[expect(clippy::box_collection, reason = "keeps a node within a cache line")]
    Many(Box<HashMap<Key, NodeId, FixedState>>),
}

impl Literals {
    fn get(&self, segment: &str) -> Option<NodeId> {
        match self {
            Self::None => None,
            Self::One(key, child) => (**key == *segment.as_bytes()).then_some(*child),
            Self::Many(map) => map.get(segment.as_bytes()).copied(),
        }
    }

    /// Adds a child that is not there yet.
    fn add(&mut self, segment: &str, child: NodeId) {
        let key = Key::from_slice(segment.as_bytes());
        *self = match std::mem::take(self) {
            Self::None => Self::One(key, child),
            Self::One(first, node) => Self::Many(Box::new([(first, node), (key, child)].into_iter().collect())),
            Self::Many(mut map) => {
                map.insert(key, child);
                Self::Many(map)
            }
        };
    }
}

/// How far the path of an entry goes beyond its node.
#[derive(Clone, Copy, Debug)]
enum Reach {
    /// It ends here.
    End,
    /// It ends here or goes on: prefixes, and regular expressions, which remain to be checked.
    Below,
    /// It goes on with at least one character.
    Tail,
}

impl Node {
    fn has_children(&self) -> bool {
        self.param.is_some() || !matches!(self.literals, Literals::None)
    }
}

// A second line would double the misses.
const _: () = assert!(size_of::<Node>() <= 64);

impl Reach {
    fn allows(self, rest: Option<&str>) -> bool {
        match self {
            Self::End => rest.is_none(),
            Self::Below => true,
            Self::Tail => rest.is_some_and(|rest| !rest.is_empty()),
        }
    }
}

impl Trie {
    /// Plants an empty tree.
    pub(super) fn root(&mut self) -> NodeId {
        self.nodes.push(Node { literals: Literals::None, param: None, least: Entry::MAX, here: SmallVec::new() });
        (self.nodes.len() - 1) as NodeId
    }

    /// Adds an entry, which has to be greater than all before it.
    pub(super) fn insert(&mut self, root: NodeId, path: &PathMatch, entry: Entry) {
        let (node, reach) = match path {
            PathMatch::Any => (root, Reach::Below),
            PathMatch::Exact(path) => (self.literal_path(root, path, entry), Reach::End),
            PathMatch::Prefix(prefix) => (self.literal_path(root, prefix, entry), Reach::Below),
            PathMatch::Template(template) => self.template(root, template.segments(), entry),
            PathMatch::Regex(pattern) => {
                let whole_segments = pattern.literal_prefix().rfind('/').unwrap_or(0);
                (self.literal_path(root, &pattern.literal_prefix()[..whole_segments], entry), Reach::Below)
            }
        };
        self.at(node, entry).here.push((entry, reach));
    }

    /// The least entry that `path`, which begins with `/`, leads to and that is accepted.
    pub(super) fn search(&self, root: NodeId, path: &str, accept: impl Fn(Entry) -> bool) -> Option<Entry> {
        let mut least = Entry::MAX;
        self.walk(root, path.get(1..), &mut least, &accept);
        (least < Entry::MAX).then_some(least)
    }

    /// The entries that may match a path that does not begin with `/`.
    pub(super) fn outside(&self, root: NodeId) -> impl Iterator<Item = Entry> + '_ {
        self.nodes[root as usize].here.iter().map(|(entry, _)| *entry)
    }

    /// `rest` is what follows the slash after the segments that led to this node; `None` if nothing does. As deep as
    /// the tree, which the limit on the segments of a configured path bounds.
    fn walk(&self, node: NodeId, rest: Option<&str>, least: &mut Entry, accept: &impl Fn(Entry) -> bool) {
        let node = &self.nodes[node as usize];
        if node.least >= *least {
            return;
        }
        if let Some(rest) = rest
            && node.has_children()
        {
            let (segment, next) = split(rest);
            if let Some(child) = node.literals.get(segment) {
                self.walk(child, next, least, accept);
            }
            if let Some(child) = node.param.filter(|_| !segment.is_empty()) {
                self.walk(child.get(), next, least, accept);
            }
        }
        let less = node.here.iter().take_while(|(entry, _)| entry < least);
        if let Some(&(entry, _)) = less.into_iter().find(|(entry, reach)| reach.allows(rest) && accept(*entry)) {
            *least = entry;
        }
    }

    /// A node on the way to an entry.
    fn at(&mut self, node: NodeId, entry: Entry) -> &mut Node {
        let node = &mut self.nodes[node as usize];
        node.least = node.least.min(entry);
        node
    }

    fn literal_path(&mut self, root: NodeId, path: &str, entry: Entry) -> NodeId {
        path.split('/').skip(1).fold(root, |node, segment| self.literal(node, segment, entry))
    }

    fn literal(&mut self, node: NodeId, segment: &str, entry: Entry) -> NodeId {
        let known = self.at(node, entry).literals.get(segment);
        known.unwrap_or_else(|| {
            let child = self.root();
            self.at(node, entry).literals.add(segment, child);
            child
        })
    }

    fn param(&mut self, node: NodeId, entry: Entry) -> NodeId {
        let known = self.at(node, entry).param.map(NonZero::get);
        known.unwrap_or_else(|| {
            let child = self.root();
            self.at(node, entry).param = NonZero::new(child);
            child
        })
    }

    fn template(&mut self, root: NodeId, segments: &[Segment], entry: Entry) -> (NodeId, Reach) {
        let mut node = root;
        for segment in segments {
            node = match segment {
                Segment::Literal(text) => self.literal(node, text, entry),
                Segment::Param(_) => self.param(node, entry),
                Segment::Tail(_) => return (node, Reach::Tail),
            };
        }
        (node, Reach::End)
    }
}

/// The first segment, and what follows the slash after it.
fn split(rest: &str) -> (&str, Option<&str>) {
    match rest.bytes().position(|byte| byte == b'/') {
        Some(at) => (&rest[..at], Some(&rest[at + 1..])),
        None => (rest, None),
    }
}
