// A page as a function of the state: `h` describes elements, `patch` makes the document as described. What is there
// already is kept, so that focus, text being typed and scroll positions survive an update every second. Text only ever
// becomes text nodes and attribute values, never markup.

const SVG = "http://www.w3.org/2000/svg";
const GAP = "#gap";
const TEXT = "#text";

/** Describes an element. Children may be nested lists; false and null hold a place and show nothing. */
export function h(tag, props, ...children) {
  return { tag, props: props ?? {}, key: props?.key, children: children.flat(Infinity).map(asNode) };
}

function asNode(child) {
  if (child === null || child === undefined || child === false) return { tag: GAP, props: {}, children: [] };
  return typeof child === "object" ? child : { tag: TEXT, text: String(child), props: {}, children: [] };
}

/** Makes the children of `host` as described. */
export function patch(host, children) {
  const refs = [];
  reconcile(host, [children].flat(Infinity).map(asNode), refs);
  for (const [ref, element] of refs) if (element.isConnected) ref(element);
}

function reconcile(host, wanted, refs) {
  const old = [...host.childNodes];
  const keyed = new Map(old.filter((node) => node.made?.key !== undefined).map((node) => [node.made.key, node]));
  const plain = old.filter((node) => node.made?.key === undefined);
  let next = host.firstChild;
  let at = 0;
  for (const description of wanted) {
    const found = description.key === undefined ? plain[at++] : keyed.get(description.key);
    const node = found?.made?.tag === description.tag ? found : create(description, host);
    if (node === next) next = next.nextSibling;
    else host.insertBefore(node, next);
    update(node, description, refs);
    keyed.delete(description.key);
    if (node !== found && found) {
      if (found === next) next = next.nextSibling;
      found.remove();
    }
  }
  for (const node of keyed.values()) node.remove();
  for (const node of plain.slice(at)) node.remove();
}

function create(description, host) {
  if (description.tag === GAP) return document.createComment("");
  if (description.tag === TEXT) return document.createTextNode("");
  const isSvg = description.tag === "svg" || (host.namespaceURI === SVG && host.localName !== "foreignObject");
  return isSvg ? document.createElementNS(SVG, description.tag) : document.createElement(description.tag);
}

function update(node, description, refs) {
  const before = node.made;
  node.made = description;
  if (description.tag === GAP) return;
  if (description.tag === TEXT) {
    if (node.data !== description.text) node.data = description.text;
    return;
  }
  const old = before?.props ?? {};
  for (const name of Object.keys(old)) if (!(name in description.props)) setProp(node, name, undefined, old[name]);
  for (const [name, value] of Object.entries(description.props)) {
    if (name !== "value") setProp(node, name, value, old[name]);
  }
  if (!description.props.opaque) reconcile(node, description.children, refs);
  // After its children: a list has its options by now.
  if ("value" in description.props) setValue(node, description.props.value, old.value);
  if (!before && description.props.ref) refs.push([description.props.ref, node]);
}

function setProp(node, name, value, old) {
  if (name === "key" || name === "ref" || name === "opaque" || name === "value") return;
  if (name.startsWith("on")) {
    listen(node, name.slice(2), value);
  } else if (name === "style") {
    for (const [property, setting] of Object.entries(value ?? {})) {
      if (old?.[property] !== setting) node.style.setProperty(property, setting);
    }
  } else if (name === "checked" || name === "disabled" || name === "selected") {
    if (node[name] !== Boolean(value)) node[name] = Boolean(value);
  } else if (value === false || value === null || value === undefined) {
    node.removeAttribute(name);
  } else if (value !== old) {
    node.setAttribute(name, value === true ? "" : String(value));
  }
}

/** What is being typed is left alone unless the state asks for something else than before. */
function setValue(node, value, old) {
  const text = String(value ?? "");
  if (text !== String(old ?? "\u0000") && node.value !== text) node.value = text;
}

function listen(node, event, handler) {
  node.handlers ??= {};
  if (!(event in node.handlers)) node.addEventListener(event, (happened) => node.handlers[event]?.(happened));
  node.handlers[event] = handler;
}

let painter = () => {};
let isDue = false;

/** Says what draws the page. */
export function onPaint(paint) {
  painter = paint;
}

/** Draws the page soon, once for all that changed until then. */
export function repaint() {
  if (isDue) return;
  isDue = true;
  setTimeout(() => {
    isDue = false;
    painter();
  });
}
