// What stands inside a block: code, emphasis, links. Text becomes text nodes, never markup.

const DEEPEST = 6;
const LONGEST = 20_000; // characters of a block; a longer one is shown as it is
const SPAN = { "**": "strong", __: "strong", "*": "em", _: "em", "~~": "s" };
const LINK = /^\[([^[\]]{1,500})\]\(\s*<?([^\s()<>]{1,2000})>?(?:\s+"[^"]{0,500}")?\s*\)/;
const BARE = /^https?:\/\/[^\s<>()[\]"'`]{1,2000}/;
const SPECIAL = /[`*_~![\\\n]|https?:\/\//g;

// Appends a text's elements to `parent`, and returns it.
export function inline(parent, text, depth = 0) {
  if (text.length > LONGEST || depth > DEEPEST) {
    parent.append(text);
    return parent;
  }
  let at = 0;
  let plain = "";
  const flush = () => {
    if (plain) parent.append(plain);
    plain = "";
  };
  while (at < text.length) {
    SPECIAL.lastIndex = at;
    const next = SPECIAL.exec(text)?.index ?? text.length;
    plain += text.slice(at, next);
    if (next === text.length) break;
    const found = special(text, next, depth);
    if (found) {
      flush();
      parent.append(found.node);
      at = found.end;
    } else if (text[next] === "\\" && /[\\`*_~[\]()#+\-.!|>]/.test(text[next + 1] ?? "")) {
      plain += text[next + 1];
      at = next + 2;
    } else {
      const run = /^(\*+|_+|~+|`+)/.exec(text.slice(next, next + 100))?.[0] ?? text[next];
      plain += run;
      at = next + run.length;
    }
  }
  flush();
  return parent;
}

// The element that begins at a character, and where it ends; null where the character is itself.
function special(text, at, depth) {
  switch (text[at]) {
    case "\n":
      return { node: document.createElement("br"), end: at + 1 };
    case "`":
      return code(text, at);
    case "!":
      return text[at + 1] === "[" ? link(text, at + 1, depth) : null;
    case "[":
      return link(text, at, depth);
    case "h":
      return bare(text, at);
    case "*":
    case "_":
    case "~":
      return span(text, at, depth);
  }
  return null;
}

function code(text, at) {
  const ticks = /^`+/.exec(text.slice(at, at + 20))[0];
  let end = text.indexOf(ticks, at + ticks.length);
  while (end >= 0 && text[end + ticks.length] === "`") {
    // A longer run of ticks is no end.
    let after = end;
    while (text[after] === "`") after += 1;
    end = text.indexOf(ticks, after);
  }
  if (end < 0) return null;
  const node = document.createElement("code");
  const inner = text.slice(at + ticks.length, end);
  node.textContent = /^ .*\S.* $/s.test(inner) ? inner.slice(1, -1) : inner;
  return { node, end: end + ticks.length };
}

function span(text, at, depth) {
  const mark = text[at + 1] === text[at] ? text[at].repeat(2) : text[at];
  const name = SPAN[mark];
  const inside = text[at + mark.length];
  if (!name || inside === undefined || /\s/.test(inside)) return null;
  // After a word and before a mark of ASCII it is an end without a beginning.
  if (/[!-/:-@[-`{-~]/.test(inside) && /[\p{L}\p{N}]/u.test(text[at - 1] ?? "")) return null;
  // An underscore inside a word is a letter of it, as in snake_case.
  if (mark[0] === "_" && /\w/.test(text[at - 1] ?? "")) return null;
  let end = text.indexOf(mark, at + mark.length + 1);
  while (end >= 0 && !ends(text, end, mark)) end = text.indexOf(mark, end + 1);
  if (end < 0) return null;
  const node = inline(document.createElement(name), text.slice(at + mark.length, end), depth + 1);
  return { node, end: end + mark.length };
}

function ends(text, end, mark) {
  if (/\s/.test(text[end - 1])) return false;
  const after = text[end + mark.length] ?? "";
  // Of a longer run the last marks are the outer ones' end: ***both***.
  if (after === mark[0] || (mark.length === 1 && text[end - 1] === mark)) return false;
  return mark[0] !== "_" || !/\w/.test(after);
}

function link(text, at, depth) {
  const found = LINK.exec(text.slice(at, at + 3100));
  if (!found) return null;
  const node = anchor(found[2]);
  return node && { node: inline(node, found[1], depth + 1), end: at + found[0].length };
}

function bare(text, at) {
  const found = BARE.exec(text.slice(at, at + 2100))?.[0].replace(/[.,;:!?]+$/, "");
  const node = found && anchor(found);
  if (!node) return null;
  node.append(found);
  return { node, end: at + found.length };
}

// A link that leads to a web page or a mail address, and nowhere else; null otherwise.
function anchor(target) {
  let url;
  try {
    url = new URL(target);
  } catch {
    return null;
  }
  if (!["http:", "https:", "mailto:"].includes(url.protocol)) return null;
  const node = document.createElement("a");
  node.href = url.href;
  node.target = "_blank";
  node.rel = "noopener noreferrer";
  return node;
}
