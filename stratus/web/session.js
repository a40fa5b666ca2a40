// One open session: its view state, its stream, its sends; and what the chat column shows of them.

import * as api from './api.js';
import { Follower } from './follow.js';
import { EMPTY, OPEN, answerText, isOpen, reduce } from './reducer.js';

const ENDS = { completed: '', failed: 'The answer failed. ', canceled: 'Stopped. ', interrupted: 'The answer was interrupted. ', merged: 'Taken up by the answer that is being written. ' };
const NEWS = /^(run|session|approval)\./;

export class Session {
  #page;
  #state = EMPTY;
  #follower = null;
  #closed = false;
  #stopping = new Set();
  #frame = 0;

  // `page` has draw(session), status(name, problem), announce(text), changed(), unauthenticated().
  constructor(id, page, { known, unsent }) {
    this.id = id;
    this.known = known; // whether the gateway has it
    this.loaded = !known;
    this.absent = null;
    this.agent = null; // the one that a new chat was begun with
    this.#page = page;
    for (const item of unsent) {
      this.#state = reduce(this.#state, { type: 'send', key: item.key, text: item.text });
      this.agent ??= item.agent;
    }
  }

  get state() {
    return this.#state;
  }

  get busy() {
    return isOpen(this.#state);
  }

  // Whether a stop was asked for and its turns have not ended yet.
  get stopping() {
    return this.#state.turns.some((turn) => OPEN.has(turn.state) && this.#stopping.has(turn.run));
  }

  async stop() {
    this.#stopping = new Set(this.#state.turns.map((turn) => turn.run));
    try {
      await api.stop(this.id);
    } catch (problem) {
      this.#stopping.clear();
      throw problem;
    }
  }

  open() {
    if (this.known) this.#follow();
    else this.#page.status('idle');
    this.#draw();
  }

  close() {
    this.#closed = true;
    cancelAnimationFrame(this.#frame);
    this.#follower?.close();
  }

  hurry() {
    this.#follower?.hurry();
  }

  rest() {
    this.#follower?.rest();
  }

  sent(item) {
    this.dispatch({ type: 'send', key: item.key, text: item.text });
  }

  accepted(item, answer) {
    this.dispatch({ type: 'accepted', key: item.key, run: answer.run, cursor: answer.cursor });
    this.known = true;
    if (this.#follower === null) this.#follow();
  }

  refused(item, problem) {
    this.dispatch({ type: 'refused', key: item.key, error: problem.message });
  }

  // The text of a refused send, taken out of the view to be edited.
  withdraw(key) {
    const item = this.#state.pending.find((one) => one.key === key);
    this.dispatch({ type: 'withdrawn', key });
    return item?.text ?? '';
  }

  async earlier() {
    const page = await api.transcript(this.id, { before: this.#state.before });
    if (!this.#closed) this.dispatch({ type: 'earlier', page });
  }

  dispatch(action) {
    const before = this.#state;
    this.#state = reduce(before, action);
    if (action.type === 'transcript') this.loaded = true;
    if (action.type === 'event') this.#tell(before, action.event);
    if (this.#state !== before && !this.#closed) this.#draw();
  }

  #follow() {
    this.#follower = new Follower(this.id, {
      state: () => this.#state,
      dispatch: (action) => {
        if (!this.#closed) this.dispatch(action);
      },
      status: (name) => {
        if (!this.#closed) this.#page.status(name);
      },
      gone: (problem) => this.#gone(problem),
    });
    this.#follower.run().then(() => {
      this.#follower = null;
    });
  }

  #gone(problem) {
    if (this.#closed) return;
    if (problem.status === 401) {
      this.#page.unauthenticated();
      return;
    }
    this.absent = problem;
    this.loaded = true;
    this.#page.status('idle');
    this.#draw();
  }

  #tell(before, event) {
    if (!NEWS.test(event.kind)) return;
    this.#page.changed();
    if (event.kind === 'approval.requested') this.#page.announce(`The agent asks to run ${event.name}. It waits for an answer.`);
    const turn = this.#state.turns.findLast((one) => one.run === event.run);
    const was = before.turns.findLast((one) => one.run === event.run);
    if (turn === undefined || was === undefined || !OPEN.has(was.state) || OPEN.has(turn.state)) return;
    this.#page.announce(`${ENDS[turn.state] ?? ''}${turn.error?.message ?? ''} ${answerText(turn)}`.trim());
  }

  // Many events may come within one frame: it is drawn once.
  #draw() {
    cancelAnimationFrame(this.#frame);
    this.#frame = requestAnimationFrame(() => this.#page.draw(this));
  }
}
