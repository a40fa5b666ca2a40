// Signing in: redeems the code of a printed link, and says what to do when there is none or it is of no use.

import * as api from './api.js';
import { setHidden, setText } from './elements.js';

const part = (name) => document.getElementById(name);

// The code of a sign-in link; it is taken out of the address and this entry of the history at once.
export function takeCode() {
  const match = /^#signin=(.+)$/.exec(location.hash);
  if (match === null) return null;
  history.replaceState(null, '', location.pathname);
  return decodeURIComponent(match[1]);
}

// Who is signed in, by `code` or by the cookie; null after the gate has been shown.
export async function enter(code) {
  try {
    return code === null ? await api.whoami() : await api.signIn(code);
  } catch (problem) {
    if (problem.temporary) return again(code, problem);
    if (code === null) showSignedOut();
    else return await already() ?? showGate('That link did not work', problem.message, true);
    return null;
  }
}

export function showSignedOut() {
  showGate('Signed out', 'This browser is not signed in to Stratus.', true);
}

function showGate(title, text, steps) {
  setHidden(part('console'), true);
  setHidden(part('gate'), false);
  setText(part('gate-title'), title);
  setText(part('gate-text'), text);
  setHidden(part('gate-steps'), !steps);
  setHidden(part('gate-again'), true);
  document.title = 'Stratus';
  return null;
}

export function hideGate() {
  setHidden(part('gate'), true);
  setHidden(part('console'), false);
}

// An old link does no harm to a browser that is signed in.
async function already() {
  try {
    return await api.whoami();
  } catch {
    return null;
  }
}

function again(code, problem) {
  showGate('No connection', `${problem.message} Nothing is lost.`, false);
  const button = part('gate-again');
  setHidden(button, false);
  return new Promise((resolve) => {
    const go = () => {
      window.removeEventListener('online', go);
      button.removeEventListener('click', go);
      resolve(enter(code));
    };
    window.addEventListener('online', go);
    button.addEventListener('click', go);
  });
}
