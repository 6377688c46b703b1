// Makes one element's content like another's, and leaves alone what is the same: focus, selection, what is open or chosen.

export function morph(old, fresh) {
  let at = old.firstChild;
  for (const node of [...fresh.childNodes]) {
    const match = find(at, node);
    if (!match) {
      old.insertBefore(node, at);
      continue;
    }
    if (match !== at) old.insertBefore(match, at);
    else at = at.nextSibling;
    update(match, node);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function find(at, node) {
  if (node.id) {
    for (let each = at; each; each = each.nextSibling) if (each.id === node.id) return each;
    return null;
  }
  return at && alike(at, node) ? at : null;
}

function alike(one, other) {
  return one.nodeType === other.nodeType && one.nodeName === other.nodeName && !one.id === !other.id;
}

function update(old, fresh) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
    return;
  }
  if (old.hasAttribute("data-keep") || old === document.activeElement?.closest("form.filters")) return;
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !kept(old, name)) old.removeAttribute(name);
  }
  for (const { name, value } of [...fresh.attributes]) {
    if (old.getAttribute(name) !== value && !kept(old, name)) old.setAttribute(name, value);
  }
  morph(old, fresh);
}

// What a person or a script has set.
function kept(element, name) {
  return (name === "open" && element.localName === "details") || (name === "hidden" && "copy" in element.dataset) ||
    (name === "hidden" && "copyFrom" in element.dataset);
}
