// Shows a session's turns as elements, each made once and changed only where the view state changed.

import { el, setHidden, setText } from './elements.js';
import { showMarkdown } from './markdown_view.js';
import { OPEN } from './reducer.js';

const TOOL_STATES = { proposed: 'to do', started: 'running', done: 'done', failed: 'failed' };
const OUTCOMES = { denied: 'denied', unknown: 'outcome unknown', interrupted: 'interrupted', failed: 'failed' };

export class Chat {
  #root;
  #actions;
  #turns = new Map();
  #pending = new Map();

  // `actions` has remove(run), edit(key).
  constructor(root, actions) {
    this.#root = root;
    this.#actions = actions;
  }

  clear() {
    this.#turns.clear();
    this.#pending.clear();
    this.#root.replaceChildren();
  }

  show(state) {
    const waiting = state.pending.filter((one) => one.run === null);
    const wanted = [
      ...state.turns.map((turn) => this.#entry(this.#turns, turn.run, () => new TurnNode(this.#actions)).show(turn)),
      ...waiting.map((one) => this.#entry(this.#pending, one.key, () => new PendingNode(this.#actions)).show(one)),
    ];
    prune(this.#turns, new Set(state.turns.map((turn) => turn.run)));
    prune(this.#pending, new Set(waiting.map((one) => one.key)));
    arrange(this.#root, wanted);
  }

  #entry(map, key, make) {
    if (!map.has(key)) map.set(key, make());
    return map.get(key);
  }
}

function prune(map, keep) {
  for (const key of map.keys()) if (!keep.has(key)) map.delete(key);
}

// Bring `parent` to have exactly `nodes`, moving none that stands right already.
function arrange(parent, nodes) {
  nodes.forEach((node, n) => {
    if (parent.children[n] !== node) parent.insertBefore(node, parent.children[n] ?? null);
  });
  while (parent.children.length > nodes.length) parent.lastElementChild.remove();
}

class TurnNode {
  #turn = null;
  #blocks = new Map();
  #question = el('div', { class: 'asked-text', dir: 'auto' });
  #files = el('ul', { class: 'files' });
  #asked = el('div', { class: 'asked' }, [el('span', { class: 'hidden' }, ['You: ']), this.#question, this.#files]);
  #answer = el('div', { class: 'answer' });
  #words = el('span', { class: 'words' });
  #remove = el('button', { type: 'button', class: 'text-button' }, ['Remove']);
  #note = el('div', { class: 'note' }, [el('span', { class: 'pulse', 'aria-hidden': 'true' }), this.#words, this.#remove]);
  #node = el('article', { class: 'turn' }, [this.#asked, this.#answer, this.#note]);

  constructor(actions) {
    this.#remove.addEventListener('click', () => actions.remove(this.#turn.run));
  }

  show(turn) {
    if (turn === this.#turn) return this.#node;
    this.#node.dataset.state = turn.state;
    this.#node.dataset.run = turn.run;
    setHidden(this.#asked, turn.asked === null);
    setText(this.#question, turn.asked?.text ?? '');
    if (turn.asked?.files !== this.#turn?.asked?.files) this.#files.replaceChildren(...(turn.asked?.files ?? []).map(fileNode));
    this.#showBlocks(turn);
    setText(this.#words, noteOf(turn));
    setHidden(this.#remove, turn.state !== 'queued');
    this.#turn = turn;
    return this.#node;
  }

  #showBlocks(turn) {
    const open = OPEN.has(turn.state);
    const nodes = turn.blocks.map((block) => {
      const known = this.#blocks.get(block.id);
      if (known?.block === block && known.open === open) return known.node;
      const node = known?.node ?? blockNode(block);
      showBlock(node, block, open);
      this.#blocks.set(block.id, { block, open, node });
      return node;
    });
    prune(this.#blocks, new Set(turn.blocks.map((block) => block.id)));
    arrange(this.#answer, nodes);
  }
}

class PendingNode {
  #item = null;
  #question = el('div', { class: 'asked-text', dir: 'auto' });
  #words = el('span', { class: 'words' });
  #edit = el('button', { type: 'button', class: 'text-button' }, ['Edit']);
  #node = el('article', { class: 'turn' }, [
    el('div', { class: 'asked' }, [el('span', { class: 'hidden' }, ['You: ']), this.#question]),
    el('div', { class: 'answer' }),
    el('div', { class: 'note' }, [this.#words, this.#edit]),
  ]);

  constructor(actions) {
    this.#edit.addEventListener('click', () => actions.edit(this.#item.key));
  }

  show(item) {
    this.#item = item;
    this.#node.dataset.state = item.state;
    setText(this.#question, item.text);
    setText(this.#words, item.state === 'refused' ? `Not sent. ${item.error}` : 'Sending');
    setHidden(this.#edit, item.state !== 'refused');
    return this.#node;
  }
}

function noteOf(turn) {
  const writing = turn.blocks.at(-1)?.done === false;
  switch (turn.state) {
    case 'queued': return 'Queued';
    case 'running': return writing ? 'Answering' : 'Working';
    case 'waiting': return 'Waiting for an approval';
    case 'failed': return `Failed. ${turn.error?.message ?? 'No reason was given.'}`;
    case 'canceled': return 'Stopped.';
    case 'interrupted': return 'Interrupted: the process that wrote this answer was lost. Nothing was repeated; send the message again if you still want it.';
    default: return '';
  }
}

function blockNode(block) {
  switch (block.type) {
    case 'text': return el('div', { class: 'text' });
    case 'thinking': return fold('thinking', [el('div', { class: 'fold-text', dir: 'auto' })]);
    case 'tool': return fold('tool', [el('h3', {}, ['Arguments']), el('pre', { class: 'args', tabindex: 0 }), el('h3', {}, ['Result']), el('pre', { class: 'result', tabindex: 0 })]);
    default: return el('ul', { class: 'files' }, [fileNode(block)]);
  }
}

function fold(kind, inside) {
  const summary = el('summary', {}, [el('span', { class: 'fold-name' }), el('span', { class: 'fold-state' })]);
  return el('details', { class: `fold ${kind}` }, [summary, el('div', { class: 'fold-body' }, inside)]);
}

function showBlock(node, block, open) {
  if (block.type === 'text') {
    showMarkdown(node, block.text);
  } else if (block.type === 'thinking') {
    setText(node.querySelector('.fold-name'), block.done || !open ? 'Thought' : 'Thinking');
    setText(node.querySelector('.fold-text'), block.text);
  } else if (block.type === 'tool') {
    showTool(node, block, open);
  }
}

function showTool(node, block, open) {
  const ended = block.state === 'done' || block.state === 'failed';
  node.dataset.state = ended || open ? block.state : 'unfinished';
  setText(node.querySelector('.fold-name'), block.name);
  const words = block.state === 'failed' ? OUTCOMES[block.outcome] ?? 'failed' : TOOL_STATES[block.state];
  setText(node.querySelector('.fold-state'), ended || open ? words : 'not finished');
  setText(node.querySelector('.args'), indented(block.args));
  setText(node.querySelector('.result'), block.content + (block.truncated ? '\n… shortened here; the agent read all of it.' : '') || (ended ? '(nothing)' : 'none yet'));
}

function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function fileNode(file) {
  const size = file.size === undefined ? '' : file.size < 1024 ? `${file.size} B` : file.size < 1024 ** 2 ? `${Math.round(file.size / 1024)} KB` : `${(file.size / 1024 ** 2).toFixed(1)} MB`;
  return el('li', {}, [file.name || 'file', ' ', el('span', { class: 'quiet' }, [size])]);
}
