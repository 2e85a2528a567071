//! Long work beside requests rests now and then. On a core that serves requests as well, work without a pause makes them
//! wait for its time slices; and a machine or a container whose CPU time is rationed stops the whole process for
//! milliseconds once its cores are busy for long.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde::de::{Deserialize, Deserializer, SeqAccess, Visitor};

/// How long work goes on without a rest.
const WORK: Duration = Duration::from_micros(500);
/// How long a rest is: work takes two and a half times as long as it would otherwise.
const REST: Duration = Duration::from_micros(700);

thread_local! {
    /// Since when this thread works without a rest; none if it need not rest.
    static SINCE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Does some work on this thread, which rests in it wherever it may [`breathe`].
pub fn at_ease<T>(work: impl FnOnce() -> T) -> T {
    let before = SINCE.replace(Some(Instant::now()));
    let done = work();
    SINCE.set(before);
    done
}

/// A place in long work at which a rest does no harm. Nothing happens there in work that nobody does [`at_ease`].
pub fn breathe() {
    if SINCE.get().is_some_and(|since| since.elapsed() >= WORK) {
        thread::sleep(REST);
        SINCE.set(Some(Instant::now()));
    }
}

/// A list that many share, which breathes after each of its items.
///
/// # Errors
/// Those of its items.
pub fn list<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<Vec<T>>, D::Error> {
    struct Items<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Items<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
            let mut items = Vec::with_capacity(seq.size_hint().unwrap_or(0));
            while let Some(item) = seq.next_element()? {
                items.push(item);
                breathe();
            }
            Ok(items)
        }
    }

    deserializer.deserialize_seq(Items(PhantomData)).map(Arc::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_at_ease_rests_and_other_work_does_not() {
        let started = at_ease(|| {
            let started = SINCE.get();
            while SINCE.get() == started {
                breathe();
            }
            started
        });
        assert!(started.is_some_and(|started| started.elapsed() >= WORK + REST));
        assert_eq!(SINCE.get(), None);
        breathe();
        assert_eq!(SINCE.get(), None);
    }

    #[test]
    fn a_list_is_what_it_would_be_without_rests() {
        let text = serde_json::to_string(&(0..1000).collect::<Vec<u64>>()).unwrap();
        let read = |text: &str| list::<u64, _>(&mut serde_json::Deserializer::from_str(text));
        assert_eq!(*at_ease(|| read(&text)).unwrap(), (0..1000).collect::<Vec<_>>());
        assert!(read("[1, true]").unwrap_err().to_string().contains("expected u64"));
        assert!(read("{}").unwrap_err().to_string().contains("expected a list"));
    }
}
