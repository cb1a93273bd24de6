"use strict";
/* Elements are made one by one and texts are set as texts: nothing of the data is ever read as HTML. */
function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name === "style") for (const [key, text] of Object.entries(value)) node.style.setProperty(key, text);
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter(child => child !== undefined && child !== null));
  return node;
}
const element = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const shape = (tag, attributes, ...children) => fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

const data = JSON.parse(document.getElementById("data").textContent);
const main = document.querySelector("main");
main.replaceChildren();

/* ---- sections, tiles, tables, bars ---- */
function section(id, title, text) {
  const box = element("section", {id}, element("h2", {}, title), text ? element("p", {}, text) : null);
  main.append(box);
  return box;
}
/* Links to the sections that come after them. */
function navigation(sections) {
  const links = sections.map(each => element("a", {href: `#${each.id}`}, each.querySelector("h2").textContent));
  sections[0]?.before(element("nav", {"aria-label": "Sections"}, links));
}
const tiles = entries => element("div", {class: "tiles"}, entries.map(([value, name, detail]) =>
  element("div", {class: "tile"}, element("b", {}, value), element("span", {}, name), element("small", {}, detail))));
const titled = (box, title, text) => box.append(element("h3", {}, title), text ? element("p", {}, text) : "");
function columns(box) {
  const pair = [element("div"), element("div")];
  box.append(element("div", {class: "columns"}, pair));
  return pair;
}
/* A column that is `text` stands left, one that is `wide` is left out where there is no room. A cell is a text, a number or a TD. */
function table(head, rows) {
  head = head.map(each => typeof each === "string" ? {name: each} : each);
  const kind = ({text, wide}) => ({class: [text && "text", wide && "wide"].filter(Boolean).join(" ") || null});
  const cell = (value, i) => {
    if (value?.tagName === "TD") { if (head[i].wide) value.classList.add("wide"); return value; }
    const attributes = kind(head[i]);
    if (value === 0) attributes.class = `${attributes.class ?? ""} zero`;
    return element("td", attributes, typeof value === "number" ? count(value) : value ?? "–");
  };
  return element("div", {class: "scroll"}, element("table", {},
    element("thead", {}, element("tr", {}, head.map(each => element("th", {...kind(each), scope: "col"}, each.name)))),
    element("tbody", {}, rows.map(row => element("tr", row.attributes, (row.cells ?? row).map(cell))))));
}
const bar = (share, color) => element("span", {class: "bar"}, element("i", {style: {width: `${100 * Math.min(share || 0, 1)}%`, background: color}}));
const barred = (text, share, color) => element("td", {}, text, bar(share, color));
/* A bar with its name and its value for each row. */
const levels = (id, rows) => element("div", {class: "levels", id}, rows.map(row => [element("span", {}, row.name),
  element("span", {class: "track", "data-tip": row.tip}, element("i", {style: {width: `${100 * Math.min(row.share, 1)}%`, background: row.color}})),
  element("span", {}, row.text)]));

/* ---- what is under the pointer: the text in `data-tip`, or what the element's `tell` answers ---- */
const tip = element("div", {id: "tip", "aria-hidden": "true"});
document.body.append(tip);
function told(event) {
  const holder = event.target.closest?.("[data-tip], .pane");
  tip.style.display = holder ? "block" : "none";
  if (!holder) return;
  tip.replaceChildren(...(holder.tell ? holder.tell(event) : [holder.dataset.tip]));
  const [right, bottom] = [document.documentElement.clientWidth - tip.offsetWidth - 8, innerHeight - tip.offsetHeight - 8];
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, right))}px`;
  tip.style.top = `${Math.max(4, Math.min(event.clientY + 14, bottom))}px`;
}
for (const kind of ["pointermove", "pointerdown"]) document.addEventListener(kind, told);
