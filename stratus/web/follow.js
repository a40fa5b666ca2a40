// Keeps one session's view fed: its transcript, then its event stream from the transcript's cursor on, through every kind of break.

import * as api from './api.js';
import { Problem } from './api.js';
import { Decoder } from './sse.js';

const RETRY_MS = 1_000;
const RETRY_MAX_MS = 10_000;
const SILENCE_MS = 40_000; // more than two of the server's keep-alives

export class Follower {
  #session;
  #view;
  #closed = new AbortController();
  #wake = () => {};
  #failures = 0;
  #retryMs = RETRY_MS;
  #resting = false;
  #cut = () => {};

  // `view` has state(), dispatch(action), status(name, problem) and gone(problem).
  constructor(session, view) {
    this.#session = session;
    this.#view = view;
  }

  close() {
    this.#closed.abort();
    this.#wake();
  }

  // Try again at once: the network is back, or somebody looks.
  hurry() {
    this.#resting = false;
    this.#failures = 0;
    this.#wake();
  }

  // Give the connection back until `hurry`: a browser has about six for all tabs of one gateway.
  rest() {
    this.#resting = true;
    this.#cut();
  }

  async run() {
    let fresh = false; // whether the transcript that is shown may be continued
    let rebuilt = false; // whether it was fetched anew with nothing heard since
    while (!this.#closed.signal.aborted) {
      let end;
      try {
        if (!fresh) await this.#load();
        fresh = true;
        end = await this.#listen();
      } catch (error) {
        if (this.#closed.signal.aborted) return;
        if (!(error instanceof Problem)) throw error;
        end = error.code === 'cursor_expired' && !rebuilt ? 'missed' : 'refused';
        if (end === 'refused' && !error.temporary) {
          this.#view.gone(error);
          return;
        }
        this.#failures += 1;
        this.#retryMs = Math.max(this.#retryMs, (error.retryAfter ?? 0) * 1000);
      }
      if (end === 'empty') {
        this.#view.status('idle');
        return;
      }
      if (end === 'heard') rebuilt = false;
      if (end === 'missed') {
        fresh = false;
        rebuilt = true;
      } else {
        await this.#pause();
      }
    }
  }

  async #load() {
    const page = await api.transcript(this.#session, { signal: this.#closed.signal });
    this.#view.dispatch({ type: 'transcript', page });
  }

  // How the stream ended: empty (nothing to follow), heard, quiet, or missed (something is gone for good: fetch the transcript).
  async #listen() {
    if (this.#resting) return 'quiet';
    const silence = new AbortController();
    const signal = AbortSignal.any([this.#closed.signal, silence.signal]);
    this.#cut = () => silence.abort();
    let timer = 0;
    const heard = () => {
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(), SILENCE_MS);
    };
    heard();
    try {
      const response = await api.follow(this.#session, this.#view.state().cursor, signal);
      if (response.status === 204) return 'empty';
      this.#view.status('live');
      return await this.#read(response.body.getReader(), heard);
    } catch (error) {
      if (error.name === 'AbortError' && !this.#closed.signal.aborted) return 'quiet';
      throw error;
    } finally {
      clearTimeout(timer);
      silence.abort();
      // From now on a gap in the numbers means that something was missed.
      this.#view.dispatch({ type: 'connected', resumed: true });
    }
  }

  async #read(reader, heard) {
    const decoder = new Decoder();
    let end = 'quiet';
    for (;;) {
      const piece = await next(reader);
      if (piece.done) return end;
      heard();
      for (const event of decoder.feed(piece.value)) {
        this.#view.dispatch({ type: 'event', id: event.id, event: JSON.parse(event.data) });
        end = 'heard';
        this.#failures = 0;
      }
      if (decoder.retry !== null) this.#retryMs = decoder.retry;
      if (this.#view.state().missed) return 'missed';
    }
  }

  async #pause() {
    if (this.#closed.signal.aborted) return;
    if (!this.#resting) {
      this.#view.status('reconnecting');
      const ceiling = Math.max(this.#retryMs, Math.min(this.#retryMs * 2 ** this.#failures, RETRY_MAX_MS));
      await this.#wait(ceiling * (0.5 + Math.random() / 2));
    }
    while (this.#resting && !this.#closed.signal.aborted) {
      this.#view.status('idle');
      await this.#wait(null);
    }
  }

  // Until `ms` have passed or somebody wakes it; null: only the latter.
  #wait(ms) {
    return new Promise((resolve) => {
      const timer = ms === null ? 0 : setTimeout(resolve, ms);
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}

// A connection that breaks ends the stream like one that is closed: what comes next is asked for by cursor in any case.
async function next(reader) {
  try {
    return await reader.read();
  } catch {
    return { done: true };
  }
}
