// Shows parsed Markdown as elements, made one by one and never from HTML; while an answer streams only what changed is made anew.

import { parse } from './markdown.js';
import { el } from './elements.js';

const shown = new WeakMap();

// Bring `container` to show `text`.
export function showMarkdown(container, text) {
  const before = shown.get(container) ?? [];
  const after = parse(text);
  let same = 0;
  while (same < before.length && same < after.length && before[same].raw === after[same].raw) same += 1;
  for (const old of before.slice(same)) old.node.remove();
  const made = after.slice(same).map((block) => ({ raw: block.raw, node: blockNode(block) }));
  container.append(...made.map((one) => one.node));
  shown.set(container, [...before.slice(0, same), ...made]);
}

function blockNode(block) {
  switch (block.type) {
    case 'paragraph': return el('p', { dir: 'auto' }, inlineNodes(block.inline));
    case 'heading': return el(`h${Math.min(block.level + 2, 6)}`, { dir: 'auto' }, inlineNodes(block.inline));
    case 'rule': return el('hr');
    case 'quote': return el('blockquote', {}, block.blocks.map(blockNode));
    case 'code': return codeNode(block);
    default: return listNode(block);
  }
}

function listNode(block) {
  const items = block.items.map((item) => el('li', { dir: 'auto' }, item.length === 1 && item[0].type === 'paragraph'
    ? inlineNodes(item[0].inline) : item.flatMap((one, n) => n === 0 && one.type === 'paragraph' ? inlineNodes(one.inline) : [blockNode(one)])));
  return block.ordered ? el('ol', { start: block.start }, items) : el('ul', {}, items);
}

function codeNode(block) {
  const code = el('code', {}, [block.text]);
  const head = [el('span', {}, [block.language || 'text'])];
  // The clipboard is there over HTTPS and on localhost only.
  if (navigator.clipboard !== undefined) head.push(copyButton(block.text));
  return el('div', { class: 'code' }, [el('div', { class: 'code-head' }, head), el('pre', { tabindex: 0 }, [code])]);
}

function copyButton(text) {
  const button = el('button', { type: 'button', class: 'text-button' }, ['Copy']);
  button.addEventListener('click', async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = 'Copied';
    } catch {
      button.textContent = 'Not allowed';
    }
  });
  return button;
}

function inlineNodes(pieces) {
  return pieces.map((piece) => {
    switch (piece.type) {
      case 'text': return document.createTextNode(piece.text);
      case 'break': return el('br');
      case 'code': return el('code', {}, [piece.text]);
      case 'strong': return el('strong', {}, inlineNodes(piece.inline));
      case 'emphasis': return el('em', {}, inlineNodes(piece.inline));
      case 'strike': return el('s', {}, inlineNodes(piece.inline));
      default: return el('a', { href: piece.href, target: '_blank', rel: 'noopener noreferrer' }, inlineNodes(piece.inline));
    }
  });
}
