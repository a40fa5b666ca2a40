// The list of chats in the drawer: what waits for somebody first, as the gateway orders it.

import { el, setHidden } from './elements.js';

const STATES = { queued: 'queued', running: 'working', waiting: 'waits for you' };

export const addressOf = (session) => `#/s/${encodeURIComponent(session)}`;
export const titleOf = (row) => row.title || row.id;

export class Threads {
  #list;
  #empty;
  #shown = '';

  constructor(list, empty) {
    this.#list = list;
    this.#empty = empty;
  }

  show(rows, current) {
    const shown = JSON.stringify([current, rows.map((row) => [row.id, row.title, row.state, row.agent])]);
    if (shown === this.#shown) return;
    this.#shown = shown;
    const focused = this.#list.contains(document.activeElement) ? document.activeElement.getAttribute('href') : null;
    this.#list.replaceChildren(...rows.map((row) => item(row, row.id === current)));
    if (focused !== null) [...this.#list.querySelectorAll('a')].find((link) => link.getAttribute('href') === focused)?.focus();
    setHidden(this.#empty, rows.length > 0);
  }
}

function item(row, current) {
  const state = STATES[row.state];
  const link = el('a', { href: addressOf(row.id), title: titleOf(row) }, [el('span', { class: 'thread-title', dir: 'auto' }, [titleOf(row)])]);
  link.append(el('span', { class: 'thread-state', 'data-state': row.state }, [state ?? '']));
  if (current) link.setAttribute('aria-current', 'page');
  return el('li', {}, [link]);
}
