// Makes elements; text goes in as text nodes, so nothing in it can become markup.

export function el(name, attributes = {}, children = []) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

// Change an element only where it differs, so that assistive technology is told of changes alone.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setHidden(node, hidden) {
  if (node.hidden !== hidden) node.hidden = hidden;
}

// Signs that are not seen, or turn the order of what is seen, as escapes: nobody shall approve what only looks harmless.
export function plainly(text) {
  return String(text).replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu, (sign) => sign === '\n' || sign === '\t' ? sign : `\\u{${sign.codePointAt(0).toString(16)}}`);
}

// JSON for reading, be it text or a value; other text as it is.
export function indented(json) {
  try {
    return JSON.stringify(typeof json === 'string' ? JSON.parse(json) : json, null, 2);
  } catch {
    return json;
  }
}
