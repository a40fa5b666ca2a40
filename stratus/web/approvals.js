// Questions to people, whether a tool call may run: a card that shows the arguments and takes the answer, and the list of what waits for us.

import { el, indented, plainly, setHidden, setText } from './elements.js';
import { addressOf } from './threads.js';

const STATES = { approved: 'Approved', denied: 'Denied', expired: 'Nobody answered in time', closed: 'Not needed any more', consumed: 'Approved' };

export class ApprovalCard {
  #actions;
  #id = '';
  #pending = false;
  #busy = false;
  #failed = '';
  #question = el('h3', { class: 'approval-question' });
  #args = el('pre', { class: 'args', tabindex: 0 });
  #note = el('input', { type: 'text', class: 'approval-note', maxlength: 500, placeholder: 'Note (optional)', 'aria-label': 'Note' });
  #approve = el('button', { type: 'button', class: 'button primary' }, ['Approve']);
  #deny = el('button', { type: 'button', class: 'button' }, ['Deny']);
  #row = el('div', { class: 'approval-row' }, [this.#note, this.#approve, this.#deny]);
  #words = el('p', { class: 'approval-words', role: 'status' });

  // `actions` has decide(id, hash, decision, note), a promise; and mayDecide(id), which is null while that is not known.
  constructor(actions) {
    this.#actions = actions;
    this.node = el('section', { class: 'approval', 'aria-label': 'Approval' }, [this.#question, this.#args, this.#row, this.#words]);
    this.#approve.addEventListener('click', () => this.#decide('approve'));
    this.#deny.addEventListener('click', () => this.#decide('deny'));
  }

  // `approval` has id, name, args, args_hash, state, expires_at, and where known agent, by and note.
  show(approval) {
    this.#id = approval.id;
    this.#pending = approval.state === 'pending';
    this.node.dataset.state = approval.state;
    this.node.dataset.approval = approval.id;
    setText(this.#question, `${approval.agent === undefined ? 'The agent' : plainly(approval.agent)} asks to run ${plainly(approval.name)}`);
    setText(this.#args, plainly(indented(approval.args)));
    this.approval = approval;
    this.refresh();
  }

  // After news of who may answer.
  refresh() {
    const may = this.#actions.mayDecide(this.#id) !== false;
    setHidden(this.#row, !this.#pending || !may);
    for (const control of [this.#approve, this.#deny, this.#note]) control.disabled = this.#busy;
    setText(this.#words, this.#pending ? this.#failed || `${may ? 'Waits for your answer' : 'Waits for somebody else’s answer'}${until(this.approval.expires_at)}.` : outcome(this.approval));
  }

  async #decide(decision) {
    this.#busy = true;
    this.#failed = '';
    this.refresh();
    try {
      await this.#actions.decide(this.#id, this.approval.args_hash, decision, this.#note.value.trim());
    } catch (problem) {
      this.#failed = `That did not work. ${problem.message}`;
      this.#busy = false;
    }
    this.refresh();
  }
}

function until(expires) {
  const at = new Date(expires ?? NaN);
  return Number.isNaN(at.getTime()) ? '' : `, until ${at.toLocaleString([], { dateStyle: 'short', timeStyle: 'short' })}`;
}

function outcome(approval) {
  const by = approval.by ? ` by ${plainly(approval.by)}` : '';
  const note = approval.note ? `: ${plainly(approval.note)}` : '';
  return `${STATES[approval.state] ?? approval.state}${by}${note}.`;
}

// What waits for us in other chats, and who may answer what.
export class Approvals {
  #list;
  #actions;
  #rows = new Map(); // by id, in the gateway's order
  #cards = new Map();

  constructor(list, actions) {
    this.#list = list;
    this.#actions = { ...actions, mayDecide: (id) => this.mayDecide(id) };
  }

  mayDecide(id) {
    return this.#rows.get(id)?.may_decide ?? null;
  }

  // `rows` as GET /approvals gives them.
  take(rows) {
    this.#rows = new Map(rows.map((row) => [row.id, row]));
  }

  // The open chat shows its own.
  show(current) {
    const wanted = [...this.#rows.values()].filter((row) => row.state === 'pending' && row.may_decide && row.session !== current);
    for (const id of this.#cards.keys()) if (!wanted.some((row) => row.id === id)) this.#cards.delete(id);
    const items = wanted.map((row) => this.#item(row));
    const same = items.length === this.#list.children.length && items.every((item, n) => item === this.#list.children[n]);
    if (!same) this.#list.replaceChildren(...items);
    setHidden(this.#list.parentElement, items.length === 0);
  }

  #item(row) {
    if (!this.#cards.has(row.id)) {
      const card = new ApprovalCard(this.#actions);
      this.#cards.set(row.id, { card, item: el('li', {}, [card.node, el('a', { href: addressOf(row.session) }, ['Show the chat'])]) });
    }
    const { card, item } = this.#cards.get(row.id);
    card.show(row);
    return item;
  }
}
