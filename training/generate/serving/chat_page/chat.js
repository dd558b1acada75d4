"use strict";
const chat = document.getElementById("chat");
const form = document.getElementById("form");
const field = document.getElementById("text");
const messages = [];
let model = "";

// All texts are strangers': they become text nodes, never markup.
function add(parent, tag, name, text) {
  const made = parent.appendChild(document.createElement(tag));
  if (name) made.className = name;
  if (text !== undefined) made.textContent = text;
  return made;
}

function counted(number, one) {
  return `${number.toLocaleString("en")} ${one}${number === 1 ? "" : "s"}`;
}

async function told(address) {
  const response = await fetch(address);
  const said = await response.json();
  if (!response.ok) throw new Error(said.error.message);
  return said;
}

// The answer's text as it is written; the receipt comes with the last event.
async function streamed(body, write) {
  const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  const response = await fetch("v1/chat/completions", options);
  if (!response.ok) throw new Error((await response.json()).error.message);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("The answer ended before its receipt");
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines.filter((line) => line.startsWith("data: "))) {
      const event = JSON.parse(line.slice("data: ".length));
      if (event.error) throw new Error(event.error);
      if (event.receipt) return event.receipt;
      write(event.choices[0].delta.content || "");
    }
  }
}

// The places of a receipt count characters as Python does, not UTF-16 units.
function pieces(characters, spans) {
  const cuts = new Set([0, characters.length]);
  for (const span of spans) cuts.add(span.start).add(span.stop);
  const places = [...cuts].sort((one, other) => one - other);
  return places.slice(1).map((stop, number) => {
    const start = places[number];
    const own = spans.filter((span) => span.start <= start && stop <= span.stop);
    const rarest = own.reduce((best, span) => (best && best.bits >= span.bits ? best : span), null);
    return { text: characters.slice(start, stop).join(""), span: rarest };
  });
}

function show(receipt) {
  const block = add(chat, "div");
  const answer = add(block, "div", "said answer");
  const details = add(block, "div");
  const spans = [...receipt.spans, ...receipt.row_spans];
  for (const { text, span } of pieces([...receipt.answer.text], spans)) {
    if (!span) {
      answer.append(text);
      continue;
    }
    const mark = add(answer, "mark", span.rows ? "row" : "", text);
    mark.tabIndex = 0;
    mark.setAttribute("role", "button");
    mark.onclick = () => showSpan(details, span);
    mark.onkeydown = (event) => event.key === "Enter" && showSpan(details, span);
  }
  const summary = add(block, "p", "quiet", `${counted(receipt.spans.length + receipt.row_spans.length, "marked part")}; searched were `
    + `${receipt.searched.tokens.toLocaleString("en")} tokens of pages`
    + (receipt.searched.rows_not_known ? ", and no rows of post-training. " : " and the rows of post-training. "));
  const link = add(summary, "a", "", "Save the receipt");
  link.href = URL.createObjectURL(new Blob([JSON.stringify(receipt)], { type: "application/json" }));
  link.download = "receipt.json";
  block.scrollIntoView({ block: "nearest" });
}

function showSpan(details, span) {
  details.replaceChildren();
  const places = span.pages || span.rows;
  add(details, "h2", "", `“${span.text.trim()}”: ${span.pages ? `${counted(span.count, "place")} in pages` : counted(span.count, "row")}`);
  for (const place of places) (span.pages ? showPage : showRow)(add(details, "div", "place"), place, span);
  if (span.count > places.length) add(details, "p", "quiet", `${(span.count - places.length).toLocaleString("en")} more`);
}

function showPage(box, page, span) {
  add(box, "div", "", page.url || "(no address)");
  add(box, "div", "quiet", `${page.snapshot}, ${page.warc_file}, offset ${(page.warc_offset ?? "unknown").toLocaleString("en")}`);
  for (const seen of page.seen) {
    const steps = seen.steps.length ? `read in ${seen.steps.length > 1 ? "steps" : "step"} ${seen.steps.join(", ")}`
      : seen.held_out ? "held out, not trained on" : "read by no step";
    add(box, "div", "quiet", `${seen.training}: ${steps}`);
  }
  const button = add(box, "button", "", "Show the page's text");
  button.onclick = async () => {
    button.disabled = true;
    try {
      const whole = await told(`receipt-page?${new URLSearchParams({ shard: page.shard, document: page.document })}`);
      const text = add(box, "div", "text");
      const [before, ...after] = whole.text.split(span.text.trim());
      text.append(before);
      if (after.length) {
        const mark = add(text, "mark", "", span.text.trim());
        text.append(after.join(span.text.trim()));
        mark.scrollIntoView({ block: "center" });
      }
      button.remove();
    } catch (error) {
      add(box, "p", "", error.message);
    }
  };
}

function showRow(box, row) {
  add(box, "div", "", row.id);
  add(box, "div", "quiet", `${row.asset} ${row.file}, line ${row.line.toLocaleString("en")}`);
  add(box, "div", "quiet", `trained on it: ${row.models.join(", ")}`);
}

form.onsubmit = async (event) => {
  event.preventDefault();
  const text = field.value.trim();
  const button = form.querySelector("button");
  if (!text || button.disabled) return;
  button.disabled = true;
  field.value = "";
  add(chat, "div", "said asked", text);
  const written = add(chat, "div", "said written");
  try {
    const asked = [...messages, { role: "user", content: text }];
    const body = { model, messages: asked, max_tokens: 400, stream: true, receipt: true };
    const receipt = await streamed(body, (more) => written.append(more));
    messages.push(asked[asked.length - 1], { role: "assistant", content: receipt.answer.text });
    written.remove();
    show(receipt);
  } catch (error) {
    add(chat, "p", "", `${error.message}. Reload the page to begin a new chat.`);
  }
  button.disabled = false;
  field.focus();
};
field.onkeydown = (event) => {
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    form.requestSubmit();
  }
};
told("v1/models").then((said) => {
  model = said.data[0].id;
  document.getElementById("model").textContent = model;
});
