// The list of operations: each opens to its evidence, and takes the verdict of a person where one may be passed.

import { el, indented, plainly, setHidden, setText } from './elements.js';

const VERDICTS = {
  unknown: [['sent', 'It was sent'], ['resend', 'Send it again'], ['cancel', 'Give it up']],
  pending: [['cancel', 'Give it up']],
};
const TWICE = 'If the platform did take it, people see it twice. Send it again?';

export class Outbox {
  #list;
  #actions;
  #items = new Map(); // by id, newest first
  paged = false; // whether older pages are shown as well

  // `actions` has evidence(id) and settle(id, verdict), promises; changed() and announce(text).
  constructor(list, actions) {
    this.#list = list;
    this.#actions = actions;
  }

  get empty() {
    return this.#items.size === 0;
  }

  clear() {
    this.#items.clear();
    this.paged = false;
    this.#list.replaceChildren();
  }

  // `ops` as GET /outbox gives them. The first page takes the place of the one before, but what a person has open stays.
  show(ops, { first }) {
    const kept = new Map([...this.#items].filter(([id, item]) => item.open || !first || (this.paged && id < (ops.at(-1)?.id ?? 0))));
    this.paged ||= !first;
    for (const op of ops) kept.set(op.id, this.#items.get(op.id) ?? new Item(op, this.#actions));
    this.#items = new Map([...kept].sort(([a], [b]) => b - a));
    for (const op of ops) this.#items.get(op.id).show(op);
    // One that is open may have moved out of what the list is of.
    for (const [id, item] of this.#items) if (item.open && !ops.some((op) => op.id === id)) item.look();
    const nodes = [...this.#items.values()].map((item) => item.node);
    const same = nodes.length === this.#list.children.length && nodes.every((node, n) => node === this.#list.children[n]);
    if (!same) this.#list.replaceChildren(...nodes);
  }
}

class Item {
  #actions;
  #op;
  #busy = false;
  #asking = null; // the verdict that waits for a second click
  #shown = '';
  #name = el('span', { class: 'fold-name', dir: 'auto' });
  #state = el('span', { class: 'fold-state' });
  #facts = el('div', { class: 'op-facts' });
  #note = el('input', { class: 'approval-note', type: 'text', maxlength: '500', placeholder: 'Note', 'aria-label': 'Note' });
  #row = el('div', { class: 'approval-row' });
  #words = el('p', { class: 'approval-words', role: 'status' });
  #fold;

  constructor(op, actions) {
    this.#actions = actions;
    this.#fold = el('details', { class: 'fold' }, [
      el('summary', {}, [this.#name, this.#state]),
      el('div', { class: 'fold-body' }, [this.#facts, this.#row, this.#words]),
    ]);
    this.node = el('li', { 'data-op': String(op.id) }, [this.#fold]);
    this.#fold.addEventListener('toggle', () => this.look());
  }

  get open() {
    return this.#fold.open;
  }

  show(op) {
    const moved = this.#op?.state !== op.state;
    this.#op = op;
    this.node.dataset.state = op.state;
    this.#fold.dataset.outcome = op.state;
    const text = op.text ? `: ${plainly(op.text)}` : '';
    setText(this.#name, `#${op.id} ${op.channel_name} ${op.kind}${text}`);
    setText(this.#state, op.state);
    if (moved) {
      this.#asking = null;
      this.#buttons();
      this.look();
    }
  }

  // Fetch the evidence anew, while it is shown.
  async look() {
    if (!this.open) return;
    try {
      const found = await this.#actions.evidence(this.#op.id);
      if (found.state !== this.#op.state) this.show(found);
      const shown = JSON.stringify(found);
      if (shown !== this.#shown) this.#facts.replaceChildren(...facts(found));
      this.#shown = shown;
    } catch (problem) {
      setText(this.#words, `The evidence cannot be shown. ${problem.message}`);
    }
  }

  #buttons() {
    const verdicts = VERDICTS[this.#op.state] ?? [];
    const buttons = verdicts.map(([action, label]) => {
      const button = el('button', { type: 'button', class: 'button' }, [this.#asking === action ? 'Yes, send it again' : label]);
      button.disabled = this.#busy;
      button.addEventListener('click', () => this.#say(action));
      return button;
    });
    this.#note.disabled = this.#busy;
    this.#row.replaceChildren(...(buttons.length === 0 ? [] : [this.#note, ...buttons]));
    setHidden(this.#row, buttons.length === 0);
  }

  async #say(action) {
    if (action === 'resend' && this.#asking !== 'resend') {
      this.#asking = 'resend';
      setText(this.#words, TWICE);
      this.#buttons();
      this.#row.querySelectorAll('button')[1].focus();
      return;
    }
    this.#busy = true;
    this.#asking = null;
    setText(this.#words, '');
    this.#buttons();
    try {
      const settled = await this.#actions.settle(this.#op.id, { action, note: this.#note.value.trim() });
      this.#note.value = '';
      this.#actions.announce(`Operation ${settled.id} is ${settled.state}.`);
      this.show({ ...this.#op, state: settled.state });
    } catch (problem) {
      setText(this.#words, `That did not work. ${problem.message}`);
    }
    this.#busy = false;
    this.#buttons();
    await this.look();
    this.#actions.changed();
  }
}

function facts(found) {
  const to = [found.address?.chat, found.address?.thread].filter(Boolean).join(' / ');
  const lines = [
    ['To', `${found.channel_name} (${found.platform}), chat ${to}`],
    ['Made', moment(found.created_at)],
    ['For', [found.agent && `agent ${found.agent}`, found.session && `session ${found.session}`, found.run && `run ${found.run}`].filter(Boolean).join(', ') || '–'],
    ['Message', found.sent_message_id ?? '–'],
    ['Why', found.error === null ? '–' : indented(found.error)],
  ];
  return [
    el('dl', { class: 'op-list' }, lines.flatMap(([name, text]) => [el('dt', {}, [name]), el('dd', { dir: 'auto' }, [plainly(text)])])),
    ...(found.text ? [el('pre', { tabindex: '0' }, [plainly(found.text)])] : []),
    ...list('Attempts', found.attempts_made, (one) => `${one.attempt}. ${one.begun ? `call began ${moment(one.started_at)}` : 'no byte left'}, by ${one.replica}: ${one.outcome ?? 'open'}${one.detail?.code ? ` (${one.detail.code})` : ''}`),
    ...list('Said by people', found.verdicts, (one) => `${moment(one.at)} ${one.by}: ${one.action}, ${one.from_state} → ${one.to_state}${one.note ? `, “${one.note}”` : ''}`),
    ...list('Around it in the chat', found.around, (one) => `#${one.id} ${one.kind}: ${one.state}${one.depends_on === found.id ? ', waits for this one' : ''}`),
  ];
}

function list(title, rows, text) {
  if (rows.length === 0) return [];
  return [el('h3', {}, [title]), el('ul', { class: 'op-lines' }, rows.map((row) => el('li', { dir: 'auto' }, [plainly(text(row))])))];
}

function moment(at) {
  const date = new Date(at ?? NaN);
  return Number.isNaN(date.getTime()) ? '–' : date.toLocaleString([], { dateStyle: 'short', timeStyle: 'medium' });
}
