// The message box: Enter sends, Shift+Enter starts a line; it grows with its text and keeps a draft for each chat.

import { setHidden, setText } from './elements.js';

const STORE = 'stratus.draft.';
const ROWS_MAX_PX = 240;

export class Composer {
  #form;
  #box;
  #agent;
  #with;
  #send;
  #session = '';

  // `send(text)` is called with what was written.
  constructor(form, send) {
    this.#form = form;
    this.#box = form.querySelector('#message');
    this.#agent = form.querySelector('#agent');
    this.#with = form.querySelector('#with');
    this.#send = form.querySelector('#send');
    this.#box.addEventListener('input', () => this.#changed());
    this.#box.addEventListener('keydown', (event) => {
      // While an input method composes, Enter belongs to it (229 is how Safari says so).
      if (event.key !== 'Enter' || event.shiftKey || event.isComposing || event.keyCode === 229) return;
      event.preventDefault();
      form.requestSubmit();
    });
    form.addEventListener('submit', (event) => {
      event.preventDefault();
      const text = this.#box.value.trim();
      if (text === '' || this.#send.disabled) return;
      this.write('');
      send(text);
    });
  }

  get agent() {
    return this.#agent.value;
  }

  // Switch to a chat's draft.
  open(session) {
    this.#session = session;
    this.write(sessionStorage.getItem(STORE + session) ?? '');
    if (matchMedia('(hover: hover)').matches) this.#box.focus();
  }

  write(text) {
    this.#box.value = text;
    this.#changed();
  }

  focus() {
    this.#box.focus();
  }

  // A new chat may `choose` among `agents`; a chat that exists has its `agent` (null while that is not known).
  showAgents(agents, { choose, agent, preferred }) {
    const options = agents.map((one) => new Option(one.name, one.id, false, one.id === preferred));
    const before = this.#agent.value;
    const same = options.length === this.#agent.options.length && options.every((option, n) => option.value === this.#agent.options[n].value && option.text === this.#agent.options[n].text);
    if (!same) {
      this.#agent.replaceChildren(...options);
      if (agents.some((one) => one.id === before)) this.#agent.value = before;
    }
    setHidden(this.#agent, !choose || agents.length === 0);
    setHidden(this.#with, choose || agent === null);
    setText(this.#with, agent === null ? '' : `With ${agents.find((one) => one.id === agent)?.name ?? agent}`);
  }

  allow(yes) {
    this.#form.dataset.closed = String(!yes);
    this.#box.disabled = !yes;
    this.#changed();
  }

  #changed() {
    this.#send.disabled = this.#box.disabled || this.#box.value.trim() === '';
    this.#box.style.height = 'auto';
    this.#box.style.height = `${Math.min(this.#box.scrollHeight, ROWS_MAX_PX)}px`;
    try {
      if (this.#box.value === '') sessionStorage.removeItem(STORE + this.#session);
      else sessionStorage.setItem(STORE + this.#session, this.#box.value);
    } catch {
      // Without storage a draft lasts as long as the page.
    }
  }
}
