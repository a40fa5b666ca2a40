// The console: brings together the gate, the list of chats, the open chat and the message box, and follows the address.

import * as api from './api.js';
import { Approvals } from './approvals.js';
import { Chat } from './chat.js';
import { Composer } from './composer.js';
import { setHidden, setText } from './elements.js';
import { enter, hideGate, showSignedOut, takeCode } from './gate.js';
import { Sender } from './sending.js';
import { Session } from './session.js';
import { Threads, addressOf, titleOf } from './threads.js';

const LIST_MS = 10_000;
const SOON_MS = 200;
const NEAR_PX = 80;
const UNSEEN_MS = 60_000;
const AGENT = 'stratus.agent';
const LINKS = { loading: '', live: '', idle: '', reconnecting: 'Reconnecting', offline: 'Offline: what you send is kept' };

const part = (name) => document.getElementById(name);
const scroll = part('scroll');

const threads = new Threads(part('threads'), part('threads-empty'));
const approvals = new Approvals(part('approvals'), { decide });
const chat = new Chat(part('log'), { remove: removeRun, edit: editRefused, decide, mayDecide: (id) => approvals.mayDecide(id) });
const composer = new Composer(part('composer'), sendMessage);
const sender = new Sender({ accepted, refused, unauthenticated: signedOut, waits: (yes) => setLink({ waits: yes }) });

let agents = [];
let rows = [];
let session = null;
let pinned = true;
let link = { name: 'loading', waits: false };
let listTimer = 0;
let unseenTimer = 0;

async function start() {
  const me = await enter(takeCode());
  if (me === null) return;
  setText(part('who'), me.name);
  setHidden(part('operations'), !['owner', 'admin'].includes(me.role));
  await refresh();
  hideGate();
  route();
  sender.pump();
}

// ---- which chat

function route() {
  const match = /^#\/s\/(.+)$/.exec(location.hash);
  const id = match === null ? null : decoded(match[1]);
  if (session !== null && id === session.id) return;
  openSession(id ?? api.newId(), id !== null);
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function openSession(id, known) {
  session?.close();
  chat.clear();
  closeDrawer();
  showNotice('');
  pinned = true;
  const unsent = sender.unsent(id);
  // A chat whose first message is still on its way is not there yet.
  const there = known && (unsent.length === 0 || unsent.every((item) => item.agent === null));
  session = new Session(id, { draw, status: (name) => setLink({ name }), announce, changed: refreshSoon, unauthenticated: signedOut }, { known: there, unsent });
  setLink({ name: 'loading' });
  session.open();
  threads.show(rows, id);
  approvals.show(id);
  composer.open(known ? id : 'new');
}

// ---- drawing

function draw(drawn) {
  if (drawn !== session) return;
  const { state, absent, loaded } = session;
  const height = scroll.scrollHeight - scroll.scrollTop;
  const first = part('log').firstElementChild;
  chat.show(state);
  setHidden(part('earlier'), state.before === null);
  showHello(loaded && state.turns.length === 0 && state.pending.length === 0, absent);
  showHead();
  if (pinned) scroll.scrollTop = scroll.scrollHeight;
  else if (first !== null && part('log').firstElementChild !== first) scroll.scrollTop = scroll.scrollHeight - height;
  setHidden(part('latest'), pinned);
  part('stop').dataset.on = String(session.busy);
  part('stop').disabled = !session.busy || session.stopping;
}

function showHello(empty, absent) {
  setHidden(part('hello'), !empty);
  if (!empty) return;
  const none = agents.length === 0;
  setText(part('hello-title'), absent !== null ? (absent.status === 404 ? 'This chat is not here' : 'This chat cannot be shown') : none ? 'No agent yet' : 'What is on your mind?');
  setText(part('hello-text'), absent !== null ? (absent.status === 404 ? 'It does not exist, or it is not yours.' : absent.message)
    : none ? 'Put an agent file into the agents folder of Stratus, or run “stratus agents apply PATH”.'
      : 'You may close this page at any time: the answer goes on, and is here when you return.');
}

function showHead() {
  const row = rows.find((one) => one.id === session.id);
  const asked = session.state.turns[0]?.asked?.text ?? session.state.pending[0]?.text;
  const title = row !== undefined ? titleOf(row) : asked ?? (session.known ? '' : 'New chat');
  setText(part('title'), title);
  document.title = title === '' ? 'Stratus' : `${title} · Stratus`;
  const choose = !session.known && session.agent === null;
  composer.showAgents(agents, { choose, agent: row?.agent ?? session.agent, preferred: localStorage.getItem(AGENT) });
  composer.allow(session.absent === null && (agents.length > 0 || session.known));
}

function setLink(change) {
  link = { ...link, ...change };
  const shown = !navigator.onLine ? 'offline' : link.waits ? 'reconnecting' : link.name;
  part('link').dataset.state = shown;
  setText(part('link'), LINKS[shown]);
}

function announce(text) {
  setText(part('announcer'), text);
}

function showNotice(text) {
  setText(part('notice'), text);
  setHidden(part('notice'), text === '');
}

// ---- acting

function sendMessage(text) {
  if (!session.known && session.agent === null) {
    session.agent = composer.agent;
    localStorage.setItem(AGENT, session.agent);
    history.pushState(null, '', addressOf(session.id));
    composer.open(session.id);
  }
  pinned = true;
  showNotice('');
  session.sent(sender.send(session.id, session.known ? null : session.agent, text));
}

function accepted(item, answer) {
  if (session?.id === item.session) session.accepted(item, answer);
  refreshSoon();
}

function refused(item, problem) {
  if (session?.id === item.session) session.refused(item, problem);
}

function editRefused(key) {
  composer.write(session.withdraw(key));
  composer.focus();
}

async function removeRun(run) {
  await acting(() => api.cancelRun(run));
}

async function stop() {
  if (!session.busy || !session.known || session.stopping) return;
  const stopped = session.stop();
  draw(session);
  await acting(() => stopped);
}

async function decide(id, hash, decision, note) {
  try {
    await api.decide(id, hash, decision, note);
  } catch (problem) {
    if (problem.status === 401) signedOut();
    else throw problem;
  } finally {
    refreshSoon();
  }
}

async function acting(what) {
  try {
    showNotice('');
    await what();
  } catch (problem) {
    if (problem.status === 401) signedOut();
    else showNotice(`That did not work. ${problem.message}`);
    if (session !== null) draw(session);
  }
}

async function signOut() {
  await acting(async () => {
    await api.signOut();
    // What was not sent must not go out in another person's name.
    sessionStorage.clear();
    location.replace(location.pathname);
  });
}

function signedOut() {
  session?.close();
  session = null;
  showSignedOut();
}

// ---- the list

async function refresh() {
  clearTimeout(listTimer);
  try {
    const [sessions, known, asked] = await Promise.all([api.sessions(), api.agents(), api.approvals()]);
    [rows, agents] = [sessions, known];
    threads.show(rows, session?.id);
    approvals.take(asked);
    approvals.show(session?.id);
    chat.refresh();
    if (session !== null) draw(session);
  } catch (problem) {
    if (problem.status === 401) signedOut();
  }
  listTimer = setTimeout(() => {
    if (document.visibilityState === 'visible' && !part('console').hidden) refresh();
  }, LIST_MS);
}

function refreshSoon() {
  clearTimeout(listTimer);
  listTimer = setTimeout(refresh, SOON_MS);
}

function hurry() {
  setLink({});
  if (!navigator.onLine) return;
  session?.hurry();
  sender.hurry();
  refreshSoon();
}

// ---- the drawer of narrow windows

function openDrawer() {
  part('console').dataset.drawer = 'open';
  part('chat').inert = true;
  part('drawer-open').setAttribute('aria-expanded', 'true');
  part('drawer-close').focus();
}

function closeDrawer() {
  if (part('console').dataset.drawer !== 'open') return;
  delete part('console').dataset.drawer;
  part('chat').inert = false;
  part('drawer-open').setAttribute('aria-expanded', 'false');
  part('drawer-open').focus();
}

function toLatest() {
  pinned = true;
  scroll.scrollTop = scroll.scrollHeight;
}

part('stop').addEventListener('click', stop);
part('sign-out').addEventListener('click', signOut);
part('drawer-open').addEventListener('click', openDrawer);
part('drawer-close').addEventListener('click', closeDrawer);
part('scrim').addEventListener('click', closeDrawer);
part('latest').addEventListener('click', toLatest);
part('earlier').addEventListener('click', () => acting(() => session.earlier()));
part('new-chat').addEventListener('click', () => {
  // From a new chat to a new chat the address does not change.
  if (!location.hash.startsWith('#/s/')) closeDrawer();
});
part('skip').addEventListener('click', (event) => {
  event.preventDefault();
  composer.focus();
});
scroll.addEventListener('scroll', () => {
  pinned = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < NEAR_PX;
  setHidden(part('latest'), pinned);
}, { passive: true });
new ResizeObserver(() => {
  if (pinned) scroll.scrollTop = scroll.scrollHeight;
}).observe(scroll);
document.addEventListener('keydown', (event) => {
  if (event.key !== 'Escape' || event.isComposing || session === null) return;
  if (part('console').dataset.drawer === 'open') closeDrawer();
  else stop();
});
document.addEventListener('visibilitychange', () => {
  clearTimeout(unseenTimer);
  if (document.visibilityState === 'hidden') unseenTimer = setTimeout(() => session?.rest(), UNSEEN_MS);
  else if (!part('console').hidden) hurry();
});
window.addEventListener('online', hurry);
window.addEventListener('offline', () => setLink({}));
window.addEventListener('hashchange', () => {
  if (location.hash.startsWith('#signin=')) start();
  else if (!part('console').hidden) route();
});

start();
