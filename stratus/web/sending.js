// Sends messages in order, each under one idempotency key until it has an answer: no retry and no reload loses or doubles one.

import * as api from './api.js';

const STORE = 'stratus.unsent';
const RETRY_MS = 1_000;
const RETRY_MAX_MS = 10_000;

export class Sender {
  #items;
  #busy = false;
  #view;
  #wake = () => {};

  // `view` has accepted(item, answer), refused(item, problem), unauthenticated() and waits(yes).
  constructor(view) {
    this.#view = view;
    this.#items = stored();
  }

  unsent(session) {
    return this.#items.filter((item) => item.session === session);
  }

  // Queue a message; its item {key, session, agent, text}. `agent` is null for a session that exists.
  send(session, agent, text) {
    const item = { key: api.newId(), session, agent, text };
    this.#items.push(item);
    this.#store();
    this.pump();
    return item;
  }

  // Try again at once.
  hurry() {
    this.#wake();
    this.pump();
  }

  async pump() {
    if (this.#busy) return;
    this.#busy = true;
    let failures = 0;
    while (this.#items.length > 0) {
      const item = this.#items[0];
      try {
        const answer = await api.send(item.session, item.agent, item.text, item.key);
        failures = 0;
        this.#drop(item);
        this.#view.waits(false);
        this.#view.accepted(item, answer);
      } catch (problem) {
        if (problem.status === 401) {
          this.#view.unauthenticated();
          break;
        }
        if (problem.temporary) {
          failures += 1;
          this.#view.waits(true);
          await this.#pause(failures, problem.retryAfter);
        } else {
          this.#drop(item);
          this.#view.refused(item, problem);
        }
      }
    }
    this.#busy = false;
  }

  #drop(item) {
    this.#items = this.#items.filter((one) => one !== item);
    this.#store();
  }

  #store() {
    try {
      sessionStorage.setItem(STORE, JSON.stringify(this.#items));
    } catch {
      // A full or forbidden storage costs the reload's safety, not the message.
    }
  }

  #pause(failures, retryAfter) {
    const ms = Math.max((retryAfter ?? 0) * 1000, Math.min(RETRY_MS * 2 ** (failures - 1), RETRY_MAX_MS));
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms * (0.5 + Math.random() / 2));
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}

function stored() {
  try {
    return JSON.parse(sessionStorage.getItem(STORE) ?? '[]');
  } catch {
    return [];
  }
}
