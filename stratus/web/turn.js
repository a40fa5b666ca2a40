// Folds one run's events into what is shown of it, as stratus/domain/transcript.py does: tests/vectors holds both to the same views. Pure.

const TERMINAL = new Map(['completed', 'failed', 'canceled', 'interrupted', 'merged'].map((state) => [`run.${state}`, state]));
const DELTAS = new Set(['text.delta', 'thinking.delta', 'tool.output']);

export function newTurn(run, at, asked) {
  // `kept`: blocks from here on belong to the model's message that is still coming; a later attempt writes that one anew.
  return { run, at, asked, begun: false, state: 'queued', attempt: 0, blocks: [], kept: 0, made: 0, waits: [], into: null, results: {}, error: null, settled: false };
}

export const toolBlock = (id, call, name, args) => ({ type: 'tool', id, call, name, args, state: 'proposed', outcome: '', content: '', truncated: false });
export const askedBlock = (id, text, merged = null) => ({ type: 'asked', id, text, merged });

// The turn after its run's next event. An event of an unknown kind changes nothing but the attempt.
export function step(turn, event) {
  const attempt = event.attempt ?? 0;
  // A lost attempt's last words, written before anybody knew.
  if (DELTAS.has(event.kind) && attempt < turn.attempt) return turn;
  const now = attempt > turn.attempt ? { ...turn, attempt } : turn;
  const state = TERMINAL.get(event.kind);
  if (state !== undefined) return { ...now, state, error: event.error ?? null, into: event.into ?? null, waits: [], blocks: now.blocks.map((block) => closed(finished(block))) };
  return Object.hasOwn(STEPS, event.kind) ? STEPS[event.kind](now, event) : now;
}

const STEPS = {
  'run.queued': (turn, event) => ({ ...turn, asked: { text: event.text ?? '', files: [] } }),
  'run.started': (turn) => ({ ...turn, state: 'running' }),
  'run.resumed': resumed,
  'run.waiting': (turn, event) => ({ ...turn, state: 'waiting', waits: event.for ?? [] }),
  'message.user': asked,
  'text.delta': (turn, event) => written(turn, 'text', event),
  'text.completed': (turn, event) => written(turn, 'text', event),
  'thinking.delta': (turn, event) => written(turn, 'thinking', event),
  'message.assistant': (turn) => ({ ...turn, blocks: turn.blocks.map(finished), kept: turn.blocks.length }),
  'tool.proposed': (turn, event) => added(turn, (id) => toolBlock(id, event.call_id, event.name, event.args)),
  // Begun, perhaps again: what an earlier attempt's run of it had put out is void.
  'tool.started': (turn, event) => called(turn, event, () => ({ state: 'started', content: '' })),
  'tool.output': (turn, event) => called(turn, event, (block) => ({ content: block.content + event.text })),
  'tool.done': result,
  'tool.failed': result,
  'approval.requested': requested,
  'approval.resolved': answered,
  'delegate.started': delegated,
  'delegate.done': (turn, event) => ({
    ...changed(turn, (block) => block.type === 'child' && block.call === event.call_id, () => ({ outcome: event.outcome })),
    waits: turn.waits.filter((one) => one.run !== event.run),
  }),
  'file.produced': (turn, event) => added(turn, (id) => ({ type: 'file', id, name: event.name, mime: event.mime, size: event.size, sha256: event.sha256 })),
  'history.compacted': (turn, event) => added(turn, (id) => ({ type: 'compacted', id, left_out: event.left_out })),
};

const finished = (block) => block.done === false ? { ...block, done: true } : block;
const closed = (block) => block.type === 'approval' && block.state === 'pending' ? { ...block, state: 'closed' } : block;
const isWritten = (block) => block.type === 'text' || block.type === 'thinking';

// Text of the step that was not committed is gone: the attempt that begins writes it anew.
function resumed(turn, event) {
  const blocks = turn.blocks.filter((block, n) => n < turn.kept || !isWritten(block) || block.done);
  const dropped = blocks.length < turn.blocks.length;
  const reason = event.reason || 'recovered';
  const next = { ...turn, state: 'running', blocks, kept: blocks.length, waits: [] };
  // It was parked at a step's end; what it waited for says the rest.
  if (reason === 'answered' && !dropped) return next;
  return added(next, (id) => ({ type: 'resumed', id, attempt: next.attempt, reason, dropped }));
}

// The first message is the question; each further one was taken up on the way.
function asked(turn, event) {
  if (!turn.begun) return { ...turn, begun: true, asked: { text: event.text, files: turn.asked?.files ?? [] } };
  return added(turn, (id) => askedBlock(id, event.text, event.merged ?? null));
}

// A piece of a part, or with text.completed all of it.
function written(turn, type, event) {
  const whole = event.kind === 'text.completed';
  const part = event.part ?? 0;
  const n = turn.blocks.findIndex((block, i) => i >= turn.kept && block.type === type && block.part === part);
  if (n >= 0) {
    const text = whole ? event.text : turn.blocks[n].text + event.text;
    return { ...turn, blocks: turn.blocks.with(n, { ...turn.blocks[n], text, done: whole }) };
  }
  const block = { type, id: `e${turn.made}`, part, text: event.text, done: whole };
  // An earlier part's block is not there when its deltas are no longer kept; order goes by part, not by arrival.
  const after = turn.blocks.findIndex((one, i) => i >= turn.kept && isWritten(one) && one.part > part);
  const blocks = after < 0 ? [...turn.blocks, block] : turn.blocks.toSpliced(after, 0, block);
  return { ...turn, blocks, made: turn.made + 1 };
}

function result(turn, event) {
  const state = event.kind === 'tool.done' ? 'done' : 'failed';
  return called(turn, event, () => ({ state, outcome: event.outcome, content: event.content, truncated: event.truncated ?? false }));
}

function requested(turn, event) {
  if (turn.blocks.some((block) => block.type === 'approval' && block.approval === event.id)) return turn;
  return added(turn, (id) => ({
    type: 'approval', id, approval: event.id, call: event.call_id, name: event.name, args: event.args, args_hash: event.args_hash ?? null, expires_at: event.expires_at ?? null, state: 'pending', by: null, note: null,
  }));
}

// The answer; one that refuses ends the call, of which no other event need tell.
function answered(turn, event) {
  const told = changed(turn, (block) => block.type === 'approval' && block.approval === event.id, () => ({ state: event.state, by: event.by ?? null, note: event.note ?? null }));
  const next = { ...told, waits: turn.waits.filter((one) => one.approval !== event.id) };
  if (event.state !== 'denied' && event.state !== 'expired') return next;
  return called(next, event, () => ({ state: 'failed', outcome: event.state }));
}

function delegated(turn, event) {
  if (turn.blocks.some((block) => block.type === 'child' && block.call === event.call_id)) return turn;
  return added(turn, (id) => ({ type: 'child', id, call: event.call_id, agent: event.agent, run: event.run, session: event.session, outcome: '' }));
}

// With a block of a committed step; unfinished text before it stays unfinished.
function added(turn, make) {
  const blocks = [...turn.blocks, make(`e${turn.made}`)];
  const kept = turn.kept === turn.blocks.length ? blocks.length : turn.kept;
  return { ...turn, blocks, kept, made: turn.made + 1 };
}

const called = (turn, event, how) => changed(turn, (block) => block.type === 'tool' && block.call === event.call_id, how);

function changed(turn, which, how) {
  return { ...turn, blocks: turn.blocks.map((block) => which(block) ? { ...block, ...how(block) } : block) };
}
