// Text of a model as elements: the parts of Markdown that models write. Nothing here parses HTML: every character of
// the text becomes a text node, so that no text can become markup. Images are not loaded, their links are shown.
import { inline } from "./inline.js";

const DEEPEST = 8; // quotes and lists inside each other; what is deeper is plain text

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(\s+|$)/;
const DELIMITER = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

// Shows a text that grows: blocks that did not change since the last call are left as they are.
export class Markdown {
  #parent;
  #sources = [];

  constructor(parent) {
    this.#parent = parent;
  }

  update(text) {
    const found = split(text.split("\n"), 0);
    found.forEach(({ source, build }, place) => {
      if (this.#sources[place] === source) return;
      const old = this.#parent.children[place];
      const fresh = build();
      if (old) old.replaceWith(fresh);
      else this.#parent.append(fresh);
      this.#sources[place] = source;
    });
    while (this.#parent.children.length > found.length) this.#parent.lastElementChild.remove();
    this.#sources.length = found.length;
  }
}

// The blocks of some lines: what each is made from, and how.
function split(lines, depth) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const { end, build } = block(lines, at, depth);
    blocks.push({ source: lines.slice(at, end).join("\n"), build });
    at = end;
  }
  return blocks;
}

function fill(parent, lines, depth) {
  parent.append(...split(lines, depth).map(({ build }) => build()));
  return parent;
}

function block(lines, at, depth) {
  const line = lines[at];
  if (FENCE.test(line)) return fence(lines, at);
  const heading = HEADING.exec(line);
  if (heading) {
    // The page's own headings come first: a model's are below them.
    const level = Math.min(heading[1].length + 2, 6);
    return { end: at + 1, build: () => inline(element(`h${level}`), heading[2]) };
  }
  if (RULE.test(line)) return { end: at + 1, build: () => element("hr") };
  if (depth < DEEPEST && QUOTE.test(line)) return quote(lines, at, depth);
  if (depth < DEEPEST && ITEM.test(line)) return list(lines, at, depth);
  if (line.includes("|") && at + 1 < lines.length && isDelimiter(lines[at + 1])) return table(lines, at);
  return paragraph(lines, at, depth);
}

function paragraph(lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !interrupts(lines, end, depth)) end += 1;
  const text = lines.slice(at, end).join("\n");
  return { end, build: () => inline(element("p"), text) };
}

function interrupts(lines, at, depth) {
  const line = lines[at];
  if (FENCE.test(line) || HEADING.test(line) || RULE.test(line)) return true;
  return depth < DEEPEST && (QUOTE.test(line) || ITEM.test(line));
}

function fence(lines, at) {
  const [, mark, info] = FENCE.exec(lines[at]);
  let end = at + 1;
  while (end < lines.length && !closes(lines[end], mark)) end += 1;
  const code = lines.slice(at + 1, end).join("\n");
  return { end: Math.min(end + 1, lines.length), build: () => figure(code, info.trim().split(/\s/)[0]) };
}

function closes(line, mark) {
  const text = line.trim();
  return text.length >= mark.length && text === mark[0].repeat(text.length);
}

function figure(code, language) {
  const caption = element("figcaption");
  const name = element("span");
  name.textContent = language || "code";
  caption.append(name);
  if (navigator.clipboard) {
    const copy = element("button");
    copy.type = "button";
    copy.textContent = "Copy";
    copy.addEventListener("click", async () => {
      await navigator.clipboard.writeText(code);
      copy.textContent = "Copied";
      setTimeout(() => (copy.textContent = "Copy"), 1500);
    });
    caption.append(copy);
  }
  const text = element("code");
  text.textContent = code;
  const scroll = element("pre");
  scroll.tabIndex = 0; // a keyboard scrolls what has the focus
  scroll.append(text);
  const whole = element("figure");
  whole.append(caption, scroll);
  return whole;
}

function quote(lines, at, depth) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  const inner = lines.slice(at, end).map((line) => line.replace(QUOTE, ""));
  return { end, build: () => fill(element("blockquote"), inner, depth + 1) };
}

function list(lines, at, depth) {
  const ordered = isOrdered(lines[at]);
  const items = [];
  let end = at;
  let start = null;
  let indent = 0;
  while (end < lines.length) {
    const item = ITEM.exec(lines[end]);
    if (item && (items.length === 0 || (item[1].length < indent && isOrdered(lines[end]) === ordered))) {
      start ??= parseInt(item[2], 10);
      indent = item[1].length + item[2].length + 1;
      items.push([lines[end].slice(item[0].length)]);
    } else if (!lines[end].trim()) {
      // A blank line is inside the list if something of it follows.
      const next = lines[end + 1] ?? "";
      const more = ITEM.exec(next);
      if (!next.startsWith("  ") && !(more && isOrdered(next) === ordered)) break;
      items.at(-1).push("");
    } else if (item && item[1].length < indent) {
      break;
    } else if (lines[end].startsWith("  ") || !interrupts(lines, end, depth)) {
      items.at(-1).push(lines[end].slice(Math.min(indent, lines[end].search(/\S/))));
    } else {
      break;
    }
    end += 1;
  }
  return { end, build: () => buildList(items, ordered, start, depth) };
}

function isOrdered(line) {
  return /^ *\d/.test(line);
}

function buildList(items, ordered, start, depth) {
  const whole = element(ordered ? "ol" : "ul");
  if (ordered && start > 1) whole.start = start;
  for (const lines of items) {
    const item = element("li");
    const blocks = split(lines, depth + 1).map(({ build }) => build());
    // An item of one paragraph is its text alone.
    if (blocks[0]?.localName === "p") item.append(...blocks[0].childNodes, ...blocks.slice(1));
    else item.append(...blocks);
    whole.append(item);
  }
  return whole;
}

function isDelimiter(line) {
  return line.includes("|") && line.length < 2000 && DELIMITER.test(line);
}

function table(lines, at) {
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|") && lines[end].trim()) end += 1;
  const rows = [lines[at], ...lines.slice(at + 2, end)].map(cells);
  return { end, build: () => buildTable(rows) };
}

function cells(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/\|$/, "");
  return inner.split("|").map((cell) => cell.trim());
}

function buildTable([head, ...rest]) {
  const body = element("tbody");
  for (const row of rest) {
    const line = element("tr");
    line.append(...head.map((_, place) => inline(element("td"), row[place] ?? "")));
    body.append(line);
  }
  const titles = element("tr");
  titles.append(
    ...head.map((title) => {
      const cell = inline(element("th"), title);
      cell.scope = "col";
      return cell;
    }),
  );
  const top = element("thead");
  top.append(titles);
  const whole = element("table");
  whole.append(top, body);
  const scroll = element("div");
  scroll.className = "table";
  scroll.append(whole);
  return scroll;
}

function element(name) {
  return document.createElement(name);
}
