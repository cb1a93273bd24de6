// Changes of the document: only what differs is touched, so that nothing flickers, scrolls or loses the focus.
// Texts reach the document as texts, never as HTML.

export const byId = (id) => document.getElementById(id);

// Makes an element: element("li.card", "text" or child, ...).
export function element(kind, ...children) {
  const [name, ...classes] = kind.split(".");
  const made = document.createElement(name);
  if (classes.length) made.className = classes.join(" ");
  made.append(...children);
  return made;
}

export function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

export function setAttribute(target, name, value) {
  if (value === null || value === false) target.removeAttribute(name);
  else if (target.getAttribute(name) !== String(value)) target.setAttribute(name, value);
}

export function setClass(target, name, isOn) {
  if (target.classList.contains(name) !== Boolean(isOn)) target.classList.toggle(name, Boolean(isOn));
}

// A number with its unit in smaller letters.
export function setFigure(target, [number, unit]) {
  if (target.dataset.shown === `${number} ${unit}`) return;
  target.dataset.shown = `${number} ${unit}`;
  target.replaceChildren(number, ...(unit ? [element("span.unit", unit)] : []));
}

// Has a parent's children be one for each of `items`, by their keys and in their order: `make` makes one, `update`
// changes it.
export function keepChildren(parent, items, keyOf, make, update) {
  const before = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let child = before.get(key);
    before.delete(key);
    if (!child) {
      child = make(item);
      child.dataset.key = key;
    }
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
    update(child, item);
  }
  for (const gone of before.values()) gone.remove();
}

// A list of facts: [name, [number, unit] or text].
export function keepFacts(list, facts) {
  keepChildren(
    list,
    facts,
    ([name]) => name,
    ([name]) => element("div", element("dt", name), element("dd")),
    (child, [, value]) => {
      const shown = child.lastElementChild;
      if (Array.isArray(value)) setFigure(shown, value);
      else setText(shown, value);
    },
  );
}

// Rows of a table whose cells are texts, [number, unit], or {text, title, mono}; `headings` name them on narrow screens.
export function keepRows(table, headings, rows) {
  keepChildren(
    table.tBodies[0],
    rows,
    (row) => row.key,
    (row) => element("tr", ...row.cells.map((_, at) => named(headings[at], at))),
    (child, row) => {
      setClass(child, "marked", row.marked);
      row.cells.forEach((cell, at) => setCell(child.children[at], cell));
    },
  );
}

function named(heading, at) {
  const cell = element(at ? "td" : "th");
  if (!at) cell.scope = "row";
  cell.dataset.heading = heading;
  return cell;
}

function setCell(target, cell) {
  if (Array.isArray(cell)) {
    setClass(target, "number", true);
    setFigure(target, cell);
  } else if (cell && typeof cell === "object") {
    setText(target, cell.text);
    setAttribute(target, "title", cell.title ?? null);
    setClass(target, "mono", cell.mono);
  } else {
    setText(target, cell ?? "");
  }
}
