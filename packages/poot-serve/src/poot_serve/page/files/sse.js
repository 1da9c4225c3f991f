// Server-sent events from a response's body: the data of each event, in order.
// https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation

export async function* eventData(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let data = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      rest += value;
      // A carriage return at the end may be the first half of a line's end.
      let start = 0;
      for (;;) {
        const end = lineEnd(rest, start);
        if (end === null) break;
        const line = rest.slice(start, end.at);
        start = end.next;
        if (line === "") {
          if (data.length) yield data.join("\n");
          data = [];
        } else if (line.startsWith("data:")) {
          data.push(line.slice(line[5] === " " ? 6 : 5));
        }
      }
      rest = rest.slice(start);
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

function lineEnd(text, from) {
  for (let at = from; at < text.length; at++) {
    if (text[at] === "\n") return { at, next: at + 1 };
    if (text[at] === "\r") {
      if (at + 1 === text.length) return null;
      return { at, next: text[at + 1] === "\n" ? at + 2 : at + 1 };
    }
  }
  return null;
}
