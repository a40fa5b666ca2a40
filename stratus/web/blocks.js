// Shows the blocks of an answer: text, thoughts, tool calls, approvals, delegated runs, files, and notes on how the run went on.

import { ApprovalCard } from './approvals.js';
import { el, indented, plainly, setHidden, setText } from './elements.js';
import { showMarkdown } from './markdown_view.js';
import { addressOf } from './threads.js';

const TOOL_STATES = { proposed: 'to do', started: 'running', done: 'done', failed: 'failed' };
const OUTCOMES = { denied: 'denied', expired: 'not approved in time', unknown: 'outcome unknown', interrupted: 'interrupted', failed: 'failed' };
const CHILD_ENDS = { '': 'working', ok: 'done' };
const RESUMED = { yielded: 'Handed on to another worker', recovered: 'Taken up again by another worker' };
const SHA256 = /^[0-9a-f]{64}$/;

const cards = new WeakMap();

// `actions` has what an approval's card needs.
export function blockNode(block, run, actions) {
  switch (block.type) {
    case 'text': return el('div', { class: 'text' });
    case 'thinking': return fold('thinking', [el('div', { class: 'fold-text', dir: 'auto' })]);
    case 'tool': return fold('tool', [
      el('p', { class: 'unknown' }, ['The worker that ran this was lost. Whether it had any effect is not known; it was not run again. Look for yourself before you repeat it.']),
      el('h3', {}, ['Arguments']), el('pre', { class: 'args', tabindex: 0 }), el('h3', {}, ['Result']), el('pre', { class: 'result', tabindex: 0 }),
    ]);
    case 'approval': return cardNode(actions);
    case 'child': return el('p', { class: 'child' }, ['Handed to ', el('a', { href: addressOf(block.session) }, [plainly(block.agent)]), ' ', el('span', { class: 'child-state' })]);
    case 'resumed': return el('p', { class: 'aside resumed', role: 'note' });
    case 'compacted': return el('p', { class: 'aside', role: 'note' }, [`${block.left_out} earlier messages no longer fit and were left out of what the agent reads.`]);
    case 'asked': return el('div', { class: 'asked' }, [el('span', { class: 'hidden' }, ['You: ']), el('div', { class: 'asked-text', dir: 'auto' }, [block.text])]);
    default: return el('ul', { class: 'files' }, [fileNode(block, run)]);
  }
}

export function showBlock(node, block, open) {
  switch (block.type) {
    case 'text':
      showMarkdown(node, block.text);
      break;
    case 'thinking':
      setText(node.querySelector('.fold-name'), block.done || !open ? 'Thought' : 'Thinking');
      setText(node.querySelector('.fold-text'), block.text);
      break;
    case 'tool':
      showTool(node, block, open);
      break;
    case 'approval':
      cards.get(node).show({ ...block, id: block.approval });
      break;
    case 'child':
      node.dataset.outcome = block.outcome;
      setText(node.querySelector('.child-state'), CHILD_ENDS[block.outcome] ?? block.outcome);
      break;
    case 'resumed':
      setText(node, `${RESUMED[block.reason] ?? 'Taken up again'}, attempt ${block.attempt}.${block.dropped ? ' What was unfinished is written anew.' : ''}`);
      break;
    default:
  }
}

// After news of who may answer an approval.
export function refreshBlock(node) {
  cards.get(node)?.refresh();
}

// A file that came with a message has no address of its own.
export function fileNode(file, run = null) {
  const size = file.size === undefined ? '' : file.size < 1024 ? `${file.size} B` : file.size < 1024 ** 2 ? `${Math.round(file.size / 1024)} KB` : `${(file.size / 1024 ** 2).toFixed(1)} MB`;
  const name = plainly(file.name || 'file');
  const there = run !== null && SHA256.test(file.sha256);
  const shown = there ? el('a', { href: `/runs/${encodeURIComponent(run)}/files/${file.sha256}`, download: name }, [name]) : name;
  return el('li', {}, [shown, ' ', el('span', { class: 'quiet' }, [size])]);
}

function cardNode(actions) {
  const card = new ApprovalCard(actions);
  cards.set(card.node, card);
  return card.node;
}

function fold(kind, inside) {
  const summary = el('summary', {}, [el('span', { class: 'fold-name' }), el('span', { class: 'fold-state' })]);
  return el('details', { class: `fold ${kind}` }, [summary, el('div', { class: 'fold-body' }, inside)]);
}

function showTool(node, block, open) {
  const ended = block.state === 'done' || block.state === 'failed';
  node.dataset.state = ended || open ? block.state : 'unfinished';
  node.dataset.outcome = block.outcome;
  setText(node.querySelector('.fold-name'), plainly(block.name));
  const words = block.state === 'failed' ? OUTCOMES[block.outcome] ?? 'failed' : TOOL_STATES[block.state];
  setText(node.querySelector('.fold-state'), ended || open ? words : 'not finished');
  setHidden(node.querySelector('.unknown'), block.outcome !== 'unknown');
  setText(node.querySelector('.args'), plainly(indented(block.args)));
  setText(node.querySelector('.result'), block.content + (block.truncated ? '\n… shortened here; the agent read all of it.' : '') || (ended ? '(nothing)' : 'none yet'));
}
