// Folds transcript pages, log events and this tab's own sends into what is shown of one session. Pure: no clock, no page, no network.

export const OPEN = new Set(['queued', 'running', 'waiting']);

const TERMINAL = {
  'run.completed': 'completed', 'run.failed': 'failed', 'run.canceled': 'canceled', 'run.interrupted': 'interrupted',
};

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
export const cursorSeq = (cursor) => Number(cursor.slice(cursor.lastIndexOf(':') + 1));

function transcript(state, page) {
  const seq = page.cursor === null ? 0 : cursorSeq(page.cursor);
  const turns = turnsOf(page);
  const known = new Set(turns.map((turn) => turn.run));
  // What was accepted meanwhile comes again as events; until then it stays in sight.
  const ahead = state.turns.filter((turn) => turn.at > seq && !known.has(turn.run)).map((turn) => ({ ...turn, blocks: [], start: 0 }));
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
  const whole = { ...first, asked: last.asked ?? first.asked, results: { ...last.results, ...first.results }, blocks: [...before, ...first.blocks] };
  return { ...state, turns: [...older.slice(0, -1), settleCalls(whole), ...rest], before: page.before };
}

// A page's messages, one turn a run. Of an open run only the question is taken: its answer comes as events.
function turnsOf(page) {
  const turns = [];
  for (const message of page.messages) {
    let turn = turns.at(-1);
    if (turn === undefined || turn.run !== message.run) {
      const open = page.open !== null && page.open.run === message.run;
      turn = { ...newTurn(message.run, 0, null), state: open ? page.open.state : message.state, error: message.error, settled: !open };
      turns.push(turn);
    }
    if (message.role === 'user') turn.asked = { text: textOf(message), files: message.parts.filter((part) => part.kind === 'file') };
    else if (turn.settled) addMessage(turn, message);
  }
  return turns.map(settleCalls);
}

function addMessage(turn, message) {
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

function newTurn(run, at, asked) {
  // `start`: blocks from here on belong to the model's message that is still coming; a resumed attempt writes that one anew.
  return { run, at, asked, state: 'queued', blocks: [], start: 0, made: 0, results: {}, error: null, settled: false };
}

const toolBlock = (id, call, name, args) => ({ id, type: 'tool', call, name, args, state: 'proposed', outcome: '', content: '', truncated: false });
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
  const asked = { text: event.text ?? '', files: [] };
  // Our own send may be heard of here before its request is answered.
  const mine = state.pending.findIndex((one) => one.run === null && one.state === 'sending' && one.text === asked.text);
  const pending = state.pending.map((one, n) => n === mine ? { ...one, run: event.run } : one);
  return { ...state, pending, turns: placed(state.turns, newTurn(event.run, event.seq, asked)) };
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

function step(turn, event) {
  const ended = TERMINAL[event.kind];
  if (ended !== undefined) return { ...turn, state: ended, error: event.error ?? null, blocks: turn.blocks.map(finished) };
  switch (event.kind) {
    case 'run.started': return { ...turn, state: 'running' };
    case 'run.resumed': return { ...turn, state: 'running', blocks: turn.blocks.slice(0, turn.start) };
    case 'run.waiting': return { ...turn, state: 'waiting' };
    case 'message.user': return { ...turn, asked: { text: event.text, files: turn.asked?.files ?? [] } };
    case 'text.delta': return written(turn, 'text', event.part, (text) => text + event.text);
    case 'thinking.delta': return written(turn, 'thinking', event.part, (text) => text + event.text);
    case 'text.completed': return written(turn, 'text', event.part, () => event.text);
    case 'message.assistant': return { ...turn, blocks: turn.blocks.map(finished), start: turn.blocks.length };
    case 'tool.proposed': return proposed(turn, event);
    case 'tool.started': return called(turn, event, { state: 'started' });
    case 'tool.done': return called(turn, event, { state: 'done', outcome: event.outcome, content: event.content, truncated: event.truncated });
    case 'tool.failed': return called(turn, event, { state: 'failed', outcome: event.outcome, content: event.content, truncated: event.truncated });
    default: return turn;
  }
}

const finished = (block) => block.done === false ? { ...block, done: true } : block;

function written(turn, type, part, how) {
  const n = turn.blocks.findIndex((block, i) => i >= turn.start && block.type === type && block.part === part);
  if (n >= 0) return { ...turn, blocks: turn.blocks.with(n, { ...turn.blocks[n], text: how(turn.blocks[n].text) }) };
  const block = { id: `e${turn.made}`, type, part, text: how(''), done: false };
  // An earlier part's block is not there when its deltas are no longer kept; order goes by part, not by arrival.
  const after = turn.blocks.findIndex((one, i) => i >= turn.start && one.part > part);
  const blocks = after < 0 ? [...turn.blocks, block] : turn.blocks.toSpliced(after, 0, block);
  return { ...turn, blocks, made: turn.made + 1 };
}

function proposed(turn, event) {
  const blocks = [...turn.blocks, toolBlock(`e${turn.made}`, event.call_id, event.name, event.args)];
  return { ...turn, blocks, start: blocks.length, made: turn.made + 1 };
}

function called(turn, event, fields) {
  return { ...turn, blocks: turn.blocks.map((block) => block.type === 'tool' && block.call === event.call_id ? { ...block, ...fields } : block) };
}
