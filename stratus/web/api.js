// The gateway's HTTP calls that the console makes; every failure is a Problem that says whether to try again.

export class Problem extends Error {
  // `status` is 0 when no answer came.
  constructor(status, code, message, retryAfter = null) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfter = retryAfter;
  }

  get temporary() {
    return this.status === 0 || this.status === 408 || this.status === 429 || this.status >= 500;
  }
}

const SESSIONS = '/sessions';
const messagesPath = (session) => `${SESSIONS}/${encodeURIComponent(session)}/messages`;

export const whoami = () => call('GET', '/auth/me');
export const signIn = (code) => call('POST', '/auth/signin', { body: { code } });
export const signOut = () => call('POST', '/auth/signout');
export const agents = async () => (await call('GET', '/agents')).agents;
export const sessions = async () => (await call('GET', SESSIONS)).sessions;
export const cancelRun = (id) => call('POST', `/runs/${encodeURIComponent(id)}/cancel`);
// `hash` is of the arguments that were shown: an answer to others is refused.
export const decide = (id, hash, decision, note) => call('POST', `/approvals/${encodeURIComponent(id)}`, { body: { decision, ...(note === '' ? {} : { note }), ...(hash ? { args_hash: hash } : {}) } });
export const stop = (session) => call('POST', `${SESSIONS}/${encodeURIComponent(session)}/stop`, { body: {} });

export const backlog = async () => (await call('GET', '/backlog')).backlog;
export const channels = async () => (await call('GET', '/channels')).channels;
export const ops = (state, before = null) => call('GET', `/outbox?limit=50${state === '' ? '' : `&state=${state}`}${before === null ? '' : `&before=${before}`}`);
export const op = (id) => call('GET', `/outbox/${id}`);
export const settleOp = (id, verdict) => call('POST', `/outbox/${id}`, { body: verdict });

// A replica of the release before, which may answer while the others are renewed, knows of none.
export async function approvals() {
  try {
    return await call('GET', '/approvals');
  } catch (problem) {
    if (problem.status === 404) return [];
    throw problem;
  }
}

export function transcript(session, { before = null, signal = null } = {}) {
  return call('GET', messagesPath(session) + (before === null ? '' : `?before=${before}`), { signal });
}

export function send(session, agent, text, key) {
  const body = agent === null ? { text } : { agent, text };
  return call('POST', messagesPath(session), { body, headers: { 'Idempotency-Key': key } });
}

// The session's stream from `cursor` on; its response once it is 200 or 204.
export function follow(session, cursor, signal) {
  const headers = { Accept: 'text/event-stream' };
  if (cursor !== null) headers['Last-Event-ID'] = cursor;
  return request('GET', `${messagesPath(session)}?follow=session`, { headers, signal });
}

// Not crypto.randomUUID: that exists over HTTPS and on localhost only.
export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, '0')).join('');
}

async function call(method, path, options = {}) {
  const response = await request(method, path, options);
  if (response.status === 204) return null;
  try {
    return await response.json();
  } catch (error) {
    throw unanswered(error);
  }
}

async function request(method, path, { body = null, headers = {}, signal = null } = {}) {
  const options = { method, headers: { Accept: 'application/json', ...headers }, signal, cache: 'no-store', credentials: 'same-origin' };
  if (body !== null) {
    options.headers['Content-Type'] = 'application/json';
    options.body = JSON.stringify(body);
  }
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    throw unanswered(error);
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

function unanswered(error) {
  return error.name === 'AbortError' ? error : new Problem(0, 'unreachable', 'Stratus does not answer.');
}

async function refusal(response) {
  const retryAfter = Number(response.headers.get('Retry-After')) || null;
  try {
    const problem = await response.json();
    return new Problem(response.status, problem.code ?? '', problem.detail ?? problem.title ?? '', retryAfter);
  } catch {
    return new Problem(response.status, '', `Stratus answered with status ${response.status}.`, retryAfter);
  }
}
