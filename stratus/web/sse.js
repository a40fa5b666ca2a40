// Reads server-sent events (WHATWG HTML §9.2.6) from bytes as they come: UTF-8 and line ends may be cut anywhere.

export class Decoder {
  #text = new TextDecoder();
  #rest = '';
  #sawReturn = false;
  #fresh = true;
  #name = '';
  #data = [];
  #id = '';
  retry = null;

  // The events that these bytes complete, as {id, kind, data}. `id` is the stream's last one, as the standard has it; `retry` is kept.
  feed(bytes) {
    const events = [];
    for (const line of this.#lines(this.#text.decode(bytes, { stream: true }))) {
      if (line !== '') this.#field(line);
      else {
        if (this.#data.length > 0) events.push({ id: this.#id, kind: this.#name || 'message', data: this.#data.join('\n') });
        this.#name = '';
        this.#data = [];
      }
    }
    return events;
  }

  #lines(text) {
    if (this.#sawReturn && text.startsWith('\n')) text = text.slice(1);
    if (text !== '') this.#sawReturn = text.endsWith('\r');
    if (this.#fresh && text !== '') {
      this.#fresh = false;
      text = text.replace(/^\uFEFF/, '');
    }
    const lines = (this.#rest + text).split(/\r\n|\n|\r/);
    this.#rest = lines.pop();
    return lines;
  }

  #field(line) {
    const colon = line.indexOf(':');
    if (colon === 0) return;
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '');
    if (name === 'event') this.#name = value;
    else if (name === 'data') this.#data.push(value);
    else if (name === 'id' && !value.includes('\0')) this.#id = value;
    else if (name === 'retry' && /^[0-9]+$/.test(value)) this.retry = Number(value);
  }
}
