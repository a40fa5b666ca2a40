// Parses the Markdown that models write into a small tree. Pure, no HTML anywhere: what is not understood stays text.
// Every scan is bounded, so that no text, however hostile, takes more than about linear time.

const DEPTH_MAX = 8;
const LABEL_MAX = 400;
const URL_MAX = 2_000;
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const FENCE = /^( {0,3})(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*$/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const ITEM = /^( *)(?:([-*+])|([0-9]{1,9})[.)])(?:( +)(.*)|$)/;
const INTERRUPTS = /^ {0,3}(?:[-*+]|1[.)]) +\S/; // "1984. A year." inside a paragraph is no list
const QUOTE = /^ {0,3}> ?/;
const BLANK = /^[ \t]*$/;
const BARE = /https?:\/\/[^\s<>"'`]{1,2000}/y;

// Blocks of a text, each with `raw`, the source that it came from.
export function parse(text) {
  return blocks(text.replace(/\r\n?/g, '\n').split('\n'), 0);
}

// The address if it may be followed (http, https, mailto), else null.
export function safeAddress(text) {
  if (!/^(?:https?:\/\/|mailto:)/i.test(text)) return null;
  try {
    const url = new URL(text);
    return ['http:', 'https:', 'mailto:'].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

function blocks(lines, depth) {
  const found = [];
  let at = 0;
  while (at < lines.length) {
    if (BLANK.test(lines[at])) {
      at += 1;
      continue;
    }
    const [block, next] = blockAt(lines, at, depth);
    found.push({ ...block, raw: lines.slice(at, next).join('\n') });
    at = next;
  }
  return found;
}

function blockAt(lines, at, depth) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence !== null) return fenced(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading !== null) return [{ type: 'heading', level: heading[1].length, inline: inline(heading[2]) }, at + 1];
  if (RULE.test(line)) return [{ type: 'rule' }, at + 1];
  if (depth < DEPTH_MAX && QUOTE.test(line)) {
    const end = endOf(lines, at, (one) => QUOTE.test(one));
    return [{ type: 'quote', blocks: blocks(lines.slice(at, end).map((one) => one.replace(QUOTE, '')), depth + 1) }, end];
  }
  if (depth < DEPTH_MAX && ITEM.test(line)) return list(lines, at, depth);
  const end = endOf(lines, at, (one, n) => n === at || !(BLANK.test(one) || FENCE.test(one) || HEADING.test(one) || RULE.test(one)
    || (depth < DEPTH_MAX && (QUOTE.test(one) || INTERRUPTS.test(one)))));
  return [{ type: 'paragraph', inline: inline(lines.slice(at, end).map((one) => one.trim()).join('\n')) }, end];
}

function endOf(lines, at, belongs) {
  let end = at;
  while (end < lines.length && belongs(lines[end], end)) end += 1;
  return end;
}

function fenced(lines, at, [, indent, mark, info]) {
  const close = new RegExp(`^ {0,3}\\${mark[0]}{${mark.length},}[ \\t]*$`);
  const end = endOf(lines, at + 1, (one) => !close.test(one));
  const code = lines.slice(at + 1, end).map((one) => one.replace(new RegExp(`^ {0,${indent.length}}`), ''));
  return [{ type: 'code', language: info.trim().split(/\s+/)[0].slice(0, 40), text: code.join('\n') }, Math.min(end + 1, lines.length)];
}

function list(lines, at, depth) {
  const first = ITEM.exec(lines[at]);
  const ordered = first[3] !== undefined;
  const items = [];
  let next = at;
  while (next < lines.length) {
    const item = ITEM.exec(lines[next]);
    if (item === null || (item[3] !== undefined) !== ordered || item[1].length > first[1].length + 1 || RULE.test(lines[next])) break;
    const inner = item[0].length - (item[5] ?? '').length;
    let end = next + 1;
    while (end < lines.length && continues(lines, end, item[1].length, inner)) end += 1;
    const own = [item[5] ?? '', ...lines.slice(next + 1, end).map((one) => dedent(one, inner))];
    items.push(blocks(own, depth + 1));
    next = end;
    const further = endOf(lines, next, (one) => BLANK.test(one));
    if (further < lines.length && ITEM.test(lines[further])) next = further;
  }
  return [{ type: 'list', ordered, start: ordered ? Number(first[3]) : 1, items }, next];
}

// Whether a line goes on with the item: indented deeper than its mark, blank before such a line, or a paragraph's next line.
function continues(lines, n, mark, inner) {
  const line = lines[n];
  if (BLANK.test(line)) return n + 1 < lines.length && !BLANK.test(lines[n + 1]) && indentOf(lines[n + 1]) > mark && indentOf(lines[n + 1]) >= Math.min(inner, mark + 2);
  if (indentOf(line) > mark) return indentOf(line) >= Math.min(inner, mark + 2) || !ITEM.test(line);
  return !BLANK.test(lines[n - 1]) && !(ITEM.test(line) || FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line));
}

const indentOf = (line) => line.length - line.trimStart().length;
const dedent = (line, columns) => line.slice(Math.min(columns, indentOf(line)));

// Pieces of running text: {type: text|code|strong|emphasis|strike|link|break}.
export function inline(text, depth = 0, linked = false) {
  const out = [];
  const unclosed = new Set();
  let plain = '';
  let at = 0;
  const flush = () => {
    if (plain !== '') out.push({ type: 'text', text: plain });
    plain = '';
  };
  while (at < text.length) {
    const piece = pieceAt(text, at, depth, linked, unclosed);
    if (piece === null) {
      plain += text[at];
      at += 1;
    } else if (piece.type === 'text') {
      plain += piece.text;
      at = piece.end;
    } else {
      flush();
      out.push(piece);
      at = piece.end;
    }
  }
  flush();
  return out;
}

function pieceAt(text, at, depth, linked, unclosed) {
  switch (text[at]) {
    case '\n': return { type: 'break', end: at + 1 };
    case '\\': return PUNCTUATION.test(text[at + 1] ?? '') ? { type: 'text', text: text[at + 1], end: at + 2 } : null;
    case '`': return code(text, at, unclosed);
    case '!': return text[at + 1] === '[' && !linked ? link(text, at + 1, depth) : null; // an image is never fetched: its address may tell a secret
    case '[': return linked ? null : link(text, at, depth);
    case '*': case '_': case '~': return styled(text, at, depth, linked, unclosed);
    case 'h': return linked ? null : bare(text, at);
    case '<': return linked ? null : angled(text, at);
    default: return null;
  }
}

function code(text, at, unclosed) {
  let end = at;
  while (text[end] === '`') end += 1;
  const mark = text.slice(at, end);
  if (!unclosed.has(mark)) {
    for (let close = text.indexOf(mark, end); close >= 0; close = text.indexOf(mark, close)) {
      let after = close;
      while (text[after] === '`') after += 1;
      if (after - close === mark.length) {
        const inside = text.slice(end, close).replaceAll('\n', ' ');
        return { type: 'code', text: /^ .*[^ ].* $/.test(inside) ? inside.slice(1, -1) : inside, end: after };
      }
      close = after;
    }
    unclosed.add(mark);
  }
  return { type: 'text', text: mark, end };
}

function styled(text, at, depth, linked, unclosed) {
  const char = text[at];
  const mark = text[at + 1] === char ? char + char : char;
  const inner = at + mark.length;
  if (mark === '~' || depth >= DEPTH_MAX || unclosed.has(mark) || /^\s?$/.test(text[inner] ?? '') || text[inner] === char) return null;
  if (char === '_' && /[\p{L}\p{N}]/u.test(text[at - 1] ?? '')) return null;
  for (let close = text.indexOf(mark, inner); close >= 0; close = text.indexOf(mark, close + 1)) {
    const after = text[close + mark.length] ?? '';
    if (/\s/.test(text[close - 1]) || text[close - 1] === '\\') continue;
    if (char === '_' && /[\p{L}\p{N}]/u.test(after)) continue;
    if (mark.length === 1 && (after === char || text[close - 1] === char)) {
      if (after === char) close += 1;
      continue;
    }
    const type = { '~~': 'strike', '**': 'strong', __: 'strong' }[mark] ?? 'emphasis';
    return { type, inline: inline(text.slice(inner, close), depth + 1, linked), end: close + mark.length };
  }
  unclosed.add(mark);
  return null;
}

function link(text, at, depth) {
  const near = text.slice(at, at + LABEL_MAX);
  const middle = labelEnd(near);
  if (middle < 0 || near[middle + 1] !== '(') return null;
  const from = at + middle + 2;
  const target = /^\s*<?([^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)*)>?(?:\s+"[^"\n]*")?\s*\)/.exec(text.slice(from, from + URL_MAX));
  const href = target === null ? null : safeAddress(target[1]);
  if (href === null) return null;
  const label = near.slice(1, middle);
  return { type: 'link', href, inline: label.trim() === '' ? [{ type: 'text', text: href }] : inline(label, depth, true), end: from + target[0].length };
}

function labelEnd(near) {
  let open = 0;
  for (let n = 0; n < near.length; n += 1) {
    if (near[n] === '\\') n += 1;
    else if (near[n] === '[') open += 1;
    else if (near[n] === ']' && (open -= 1) === 0) return n;
  }
  return -1;
}

function bare(text, at) {
  if (/[\p{L}\p{N}]/u.test(text[at - 1] ?? '')) return null;
  BARE.lastIndex = at;
  const match = BARE.exec(text);
  if (match === null) return null;
  // A sentence's own end is not the address's.
  const address = match[0].replace(match[0].includes('(') ? /[.,:;!?*_~\]}]+$/ : /[.,:;!?*_~\]})]+$/, '');
  const href = safeAddress(address);
  return href === null ? null : { type: 'link', href, inline: [{ type: 'text', text: address }], end: at + address.length };
}

function angled(text, at) {
  const match = /^<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/i.exec(text.slice(at, at + URL_MAX + 10));
  const href = match === null ? null : safeAddress(match[1]);
  return href === null ? null : { type: 'link', href, inline: [{ type: 'text', text: match[1] }], end: at + match[0].length };
}
