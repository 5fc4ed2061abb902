// Small makers of elements. Text is always set as text, never parsed.
export const byId = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function makeSvg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

// columns: [{title, cell: (row) => text or node, kind: class of the cells}]
export function table(columns, rows) {
  const head = make("tr", {}, ...columns.map(({ title, kind = "" }) => make("th", { scope: "col", class: kind }, title)));
  const lines = rows.map((row) => make("tr", {}, ...columns.map(({ cell, kind = "" }) => {
    const content = cell(row);
    return content instanceof HTMLTableCellElement ? content : make("td", { class: kind }, content);
  })));
  return make("table", {}, make("thead", {}, head), make("tbody", {}, ...lines));
}

export const empty = (text) => make("p", { class: "empty" }, text);
