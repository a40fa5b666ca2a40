// The operators' page: what waits and for how long, how the channels do, and the outbox with what only a person can settle.

import * as api from './api.js';
import { el, setHidden, setText } from './elements.js';
import { enter, hideGate, showSignedOut, takeCode } from './gate.js';
import { Outbox } from './outbox.js';

const EVERY_MS = 5_000;

const part = (name) => document.getElementById(name);
const outbox = new Outbox(part('outbox'), { evidence: api.op, settle, changed: refreshSoon, announce: (text) => setText(part('announcer'), text) });

let timer = 0;
let older = null; // the `next` of the page that is shown last

async function start() {
  if (await enter(takeCode()) === null) return;
  hideGate();
  await refresh();
}

async function settle(id, verdict) {
  try {
    return await api.settleOp(id, verdict);
  } catch (problem) {
    if (problem.status === 401) signedOut();
    throw problem;
  }
}

async function refresh() {
  clearTimeout(timer);
  try {
    const [backlog, channels, page] = await Promise.all([api.backlog(), api.channels(), api.ops(part('state').value)]);
    showBacklog(backlog);
    showChannels(channels);
    showPage(page, true);
    setText(part('link'), '');
    part('link').dataset.state = 'live';
  } catch (problem) {
    if (problem.status === 401) return signedOut();
    part('link').dataset.state = 'reconnecting';
    setText(part('link'), problem.status === 403 ? 'Only administrators see this page' : 'No connection: what you see may be old');
  }
  timer = setTimeout(() => {
    if (document.visibilityState === 'visible') refresh();
  }, EVERY_MS);
}

function refreshSoon() {
  clearTimeout(timer);
  timer = setTimeout(refresh, 100);
}

function signedOut() {
  clearTimeout(timer);
  showSignedOut();
}

function showPage(page, first) {
  older = first && outbox.paged ? older : page.next;
  outbox.show(page.ops, { first });
  setHidden(part('more'), older === null);
  setHidden(part('outbox-empty'), !outbox.empty);
}

async function more() {
  try {
    showPage(await api.ops(part('state').value, older), false);
  } catch (problem) {
    if (problem.status === 401) signedOut();
    else setText(part('link'), `That did not work. ${problem.message}`);
  }
}

function showBacklog(rows) {
  setHidden(part('backlog-empty'), rows.length > 0);
  showTable(part('backlog'), ['What', 'State', 'How many', 'Oldest'], rows.map((row) => [row.queue, row.state, String(row.total), age(row.oldest)]));
}

function showChannels(rows) {
  setHidden(part('channels-empty'), rows.length > 0);
  showTable(part('channels'), ['Channel', 'Platform', 'Health', 'Why', 'Runs on'], rows.map((row) => [
    row.name, row.platform, row.enabled ? row.health?.state ?? 'not started' : 'disabled', [row.health?.cause, row.last_error].filter(Boolean).join(': '), row.replica ?? '–',
  ]));
}

function showTable(table, titles, rows) {
  const shown = JSON.stringify(rows);
  if (table.dataset.shown === shown) return;
  table.dataset.shown = shown;
  const head = el('thead', {}, [el('tr', {}, titles.map((title) => el('th', { scope: 'col' }, [title])))]);
  const body = el('tbody', {}, rows.map((row) => el('tr', {}, row.map((text) => el('td', { dir: 'auto' }, [text])))));
  table.replaceChildren(...(rows.length === 0 ? [] : [head, body]));
}

function age(seconds) {
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 129_600 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86_400)} days`;
}

part('state').addEventListener('change', () => {
  outbox.clear();
  older = null;
  refresh();
});
part('more').addEventListener('click', more);
document.addEventListener('visibilitychange', () => {
  if (document.visibilityState === 'visible' && !part('console').hidden) refresh();
});

start();
