// Folds transcript pages, log events and this tab's own sends into what is shown of one session. Pure: no clock, no page, no network.

import { askedBlock, newTurn, step, toolBlock } from './turn.js';

export const OPEN = new Set(['queued', 'running', 'waiting']);

// `seq` and `cursor` name the last event taken in; `pending` are sends that no run stands for yet; `missed` asks for the transcript anew.
export const EMPTY = Object.freeze({ turns: [], seq: 0, cursor: null, before: null, pending: [], resumed: false, missed: false });

export function reduce(state, action) {
  switch (action.type) {
    case 'transcript': return transcript(state, action.page);
    case 'earlier': return earlier(state, action.page);
    case 'connected': return { ...state, resumed: action.resumed };
    case 'event': return logged(state, action.event, action.id);
    case 'send': return { ...state, pending: [...state.pending, { key: action.key, text: action.text, state: 'sending', run: null, error: '' }] };
    case 'refused': return { ...state, pending: state.pending.map((one) => one.key === action.key ? { ...one, state: 'refused', error: action.error } : one) };
    case 'withdrawn': return { ...state, pending: state.pending.filter((one) => one.key !== action.key) };
    case 'accepted': return accepted(state, action);
    default: throw new Error(`unknown action ${action.type}`);
  }
}

export const isOpen = (state) => state.turns.some((turn) => OPEN.has(turn.state));
export const answerText = (turn) => turn.blocks.filter((block) => block.type === 'text').map((block) => block.text).join('\n\n');
// Turns to show: a message that another turn took up, and shows in its place, is not shown twice.
export const shownTurns = (state) => state.turns.filter((turn) => turn.state !== 'merged' || !state.turns.some((other) => other.run === turn.into && takenUp(other, turn)));
const takenUp = (other, turn) => other.blocks.some((block) => block.type === 'asked' && block.merged === turn.run);
export const cursorSeq = (cursor) => Number(cursor.slice(cursor.lastIndexOf(':') + 1));

function transcript(state, page) {
  const seq = page.cursor === null ? 0 : cursorSeq(page.cursor);
  const turns = turnsOf(page);
  const known = new Set(turns.map((turn) => turn.run));
  // What was accepted meanwhile comes again as events; until then it stays in sight.
  const ahead = state.turns.filter((turn) => turn.at > seq && !known.has(turn.run)).map((turn) => newTurn(turn.run, turn.at, turn.asked));
  return { ...state, turns: [...turns, ...ahead], seq, cursor: page.cursor, before: page.before, resumed: false, missed: false };
}

function earlier(state, page) {
  const older = turnsOf({ ...page, open: null });
  const [first, ...rest] = state.turns;
  const last = older.at(-1);
  if (first === undefined || last === undefined || first.run !== last.run) {
    return { ...state, turns: [...older, ...state.turns], before: page.before };
  }
  // The answer of an open run came as events, whole.
  const before = first.settled ? last.blocks : [];
  // What looked like the question, where the newer page began, may have been a message that was taken up on the way.
  const further = first.settled && first.asked !== null && last.asked !== null ? [askedBlock(`u${page.before}`, first.asked.text)] : [];
  const whole = { ...first, asked: last.asked ?? first.asked, results: { ...last.results, ...first.results }, blocks: [...before, ...further, ...first.blocks] };
  return { ...state, turns: [...older.slice(0, -1), settleCalls(whole), ...rest], before: page.before };
}

// A page's messages, one turn a run. Of an open run only the question is taken: its answer comes as events.
function turnsOf(page) {
  const turns = [];
  for (const message of page.messages) {
    let turn = turns.findLast((one) => one.run === message.run);
    const first = turn === undefined;
    if (first) {
      const open = page.open !== null && page.open.run === message.run;
      turn = { ...newTurn(message.run, 0, null), state: open ? page.open.state : message.state, error: message.error, settled: !open };
      turns.push(turn);
    }
    if (message.role === 'user' && (first || !turn.settled)) turn.asked ??= { text: textOf(message), files: message.parts.filter((part) => part.kind === 'file') };
    else if (turn.settled) addMessage(turn, message);
  }
  return turns.map(settleCalls);
}

function addMessage(turn, message) {
  if (message.role === 'user') {
    turn.blocks.push(askedBlock(`m${message.position}`, textOf(message)));
    return;
  }
  message.parts.forEach((part, n) => {
    const id = `m${message.position}.${n}`;
    if (part.kind === 'text' || part.kind === 'thinking') {
      if (part.text) turn.blocks.push({ id, type: part.kind, part: n, text: part.text, done: true });
    } else if (part.kind === 'tool_call') {
      turn.blocks.push(toolBlock(id, part.call_id, part.name, part.args));
    } else if (part.kind === 'tool_result') {
      turn.results = { ...turn.results, [part.call_id]: part };
    } else if (part.kind === 'file') {
      turn.blocks.push({ id, type: 'file', name: part.name, size: part.size, mime: part.mime });
    }
  });
}

// A page may begin between a call and its result, so results wait for the page that has their calls.
function settleCalls(turn) {
  const blocks = turn.blocks.map((block) => {
    const result = block.type === 'tool' ? turn.results[block.call] : undefined;
    return result === undefined ? block : { ...block, state: result.outcome === 'ok' ? 'done' : 'failed', outcome: result.outcome, content: result.content };
  });
  return { ...turn, blocks };
}

const textOf = (message) => message.parts.filter((part) => part.kind === 'text').map((part) => part.text).join('\n');

function logged(state, event, id) {
  if (event.seq <= state.seq) return state;
  if (state.resumed && event.seq > state.seq + 1) return { ...state, missed: true };
  const next = { ...state, seq: event.seq, cursor: id || state.cursor };
  if (event.run === null) return next;
  if (event.kind === 'run.queued') return queued(next, event);
  return change(next, event.run, (turn) => turn.settled ? turn : step(turn, event));
}

function queued(state, event) {
  if (state.turns.some((turn) => turn.run === event.run)) return state;
  const turn = step(newTurn(event.run, event.seq, null), event);
  // Our own send may be heard of here before its request is answered.
  const mine = state.pending.findIndex((one) => one.run === null && one.state === 'sending' && one.text === turn.asked.text);
  const pending = state.pending.map((one, n) => n === mine ? { ...one, run: event.run } : one);
  return { ...state, pending, turns: placed(state.turns, turn) };
}

function accepted(state, { key, run, cursor }) {
  const sent = state.pending.find((one) => one.key === key);
  const pending = state.pending.filter((one) => one.key !== key);
  const at = cursorSeq(cursor);
  const known = state.turns.some((turn) => turn.run === run) || at <= state.seq;
  if (known || sent === undefined) return { ...state, pending };
  return { ...state, pending, turns: placed(state.turns, newTurn(run, at, { text: sent.text, files: [] })) };
}

function placed(turns, turn) {
  const after = turns.findIndex((one) => one.at > turn.at);
  return after < 0 ? [...turns, turn] : [...turns.slice(0, after), turn, ...turns.slice(after)];
}

function change(state, run, how) {
  const n = state.turns.findLastIndex((turn) => turn.run === run);
  const turn = n < 0 ? undefined : how(state.turns[n]);
  return turn === undefined || turn === state.turns[n] ? state : { ...state, turns: state.turns.with(n, turn) };
}
