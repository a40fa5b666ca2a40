// Shows a session's turns as elements, each made once and changed only where the view state changed.

import { blockNode, fileNode, refreshBlock, showBlock } from './blocks.js';
import { el, setHidden, setText } from './elements.js';
import { OPEN, shownTurns } from './reducer.js';

export class Chat {
  #root;
  #actions;
  #turns = new Map();
  #pending = new Map();

  // `actions` has remove(run), edit(key), and what an approval's card needs.
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
    const turns = shownTurns(state);
    const wanted = [
      ...turns.map((turn) => this.#entry(this.#turns, turn.run, () => new TurnNode(this.#actions)).show(turn)),
      ...waiting.map((one) => this.#entry(this.#pending, one.key, () => new PendingNode(this.#actions)).show(one)),
    ];
    prune(this.#turns, new Set(turns.map((turn) => turn.run)));
    prune(this.#pending, new Set(waiting.map((one) => one.key)));
    arrange(this.#root, wanted);
  }

  // After news of who may answer an approval.
  refresh() {
    for (const turn of this.#turns.values()) turn.refresh();
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
  #actions;
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
    this.#actions = actions;
    this.#remove.addEventListener('click', () => actions.remove(this.#turn.run));
  }

  show(turn) {
    if (turn === this.#turn) return this.#node;
    this.#node.dataset.state = turn.state;
    this.#node.dataset.run = turn.run;
    setHidden(this.#asked, turn.asked === null);
    setText(this.#question, turn.asked?.text ?? '');
    if (turn.asked?.files !== this.#turn?.asked?.files) this.#files.replaceChildren(...(turn.asked?.files ?? []).map((file) => fileNode(file)));
    this.#showBlocks(turn);
    setText(this.#words, noteOf(turn));
    setHidden(this.#remove, turn.state !== 'queued');
    this.#turn = turn;
    return this.#node;
  }

  refresh() {
    for (const { node } of this.#blocks.values()) refreshBlock(node);
  }

  #showBlocks(turn) {
    const open = OPEN.has(turn.state);
    const nodes = turn.blocks.map((block) => {
      const known = this.#blocks.get(block.id);
      if (known?.block === block && known.open === open) return known.node;
      const node = known?.node ?? blockNode(block, turn.run, this.#actions);
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
    case 'waiting': return waitsFor(turn);
    case 'failed': return `Failed. ${turn.error?.message ?? 'No reason was given.'}`;
    case 'canceled': return 'Stopped.';
    case 'merged': return 'Taken up by the answer that was being written.';
    case 'interrupted': return 'Interrupted: the process that wrote this answer was lost, and so were those that took it up. Send the message again if you still want it.';
    default: return '';
  }
}

function waitsFor(turn) {
  const names = turn.waits.map((one) => one.agent ?? turn.blocks.find((block) => block.type === 'approval' && block.approval === one.approval)?.name ?? 'an answer');
  const approvals = turn.waits.filter((one) => one.approval !== undefined).length;
  if (names.length === 0) return 'Waiting for a worker';
  return `Waiting for ${approvals === names.length ? 'an approval' : approvals > 0 ? 'approvals and other agents' : 'another agent'}: ${[...new Set(names)].join(', ')}`;
}
