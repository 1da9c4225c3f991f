// The server's API. URLs are relative, so that the page works under a path of a proxy too.
import { eventData } from "./sse.js";

// What the server or the connection refused: a message for the reader, and the status (0 where there is none).
export class ApiError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

function headers(key) {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function request(path, options) {
  try {
    return await fetch(path, { credentials: "omit", cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server does not answer.");
  }
}

// The message in a body of OpenAI's error shape, or what can be said without one.
function refusal(status, body, retryAfter) {
  let message = "";
  try {
    const { error } = JSON.parse(body);
    message = typeof error === "string" ? error : (error?.message ?? "");
    if (error?.param) message += ` (${error.param})`;
  } catch {
    message = body.slice(0, 300);
  }
  message ||= `The server answered with status ${status}.`;
  if (retryAfter) message += ` Try again in ${retryAfter} s.`;
  return new ApiError(message, status);
}

async function requireOk(response) {
  if (response.ok) return response;
  throw refusal(response.status, await response.text(), response.headers.get("Retry-After"));
}

export async function models(key, signal) {
  const response = await requireOk(await request("v1/models", { headers: headers(key), signal }));
  return (await response.json()).data.map((model) => model.id);
}

// Whether the server is ready, and what it says otherwise.
export async function readiness() {
  const response = await request("ready", {});
  const body = await response.text();
  if (response.ok) return { ready: true, text: "ready" };
  try {
    const { reason } = JSON.parse(body);
    if (reason) return { ready: false, text: reason };
  } catch {
    // Something in between answers, not the server.
  }
  return { ready: false, text: refusal(response.status, body, null).message };
}

// Streams an answer: yields {text} for each piece, then {finish, usage}. Raises ApiError for a refusal, for an error
// event, and for a stream that ends before the answer does; AbortError when `signal` says so.
export async function* answer(body, key, signal) {
  const response = await requireOk(
    await request("v1/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json", ...headers(key) },
      body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
      signal,
    }),
  );
  let finish = null;
  let usage = null;
  try {
    for await (const data of eventData(response.body)) {
      if (data === "[DONE]") {
        yield { finish, usage };
        return;
      }
      const event = parse(data);
      if (event.error) throw refusal(0, data, null);
      usage = event.usage ?? usage;
      const choice = event.choices?.[0];
      finish = choice?.finish_reason ?? finish;
      const text = choice?.delta?.content;
      if (text) yield { text };
    }
  } catch (error) {
    if (error instanceof ApiError || error.name === "AbortError") throw error;
    throw new ApiError("The connection broke before the answer was complete.");
  }
  throw new ApiError("The connection ended before the answer was complete.");
}

function parse(data) {
  try {
    return JSON.parse(data);
  } catch {
    throw new ApiError("The server sent an event that is not JSON.");
  }
}
