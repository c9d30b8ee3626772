// The live page of `millstream quickstart`, `flow run` and `start` in a real browser. MILLSTREAM_BIN names the program.

import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, before, test } from "node:test";

import { chromium } from "playwright-core";

const PROGRAM = process.env.MILLSTREAM_BIN;
const SCREENSHOTS = join(import.meta.dirname, "../../target/browser");

const START_MS_MAX = 30_000;
const COUNT_MS_MAX = 30_000;
const LOST_MS_MAX = 15_000;

// The browser itself must not reach out either, and Debian's refuses its sandbox to root.
const BROWSER_FLAGS = [
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-gpu",
  "--disable-quic",
  "--disable-sync",
  "--no-first-run",
  ...(process.getuid() === 0 ? ["--no-sandbox"] : []),
];

const DESKTOP = { width: 1280, height: 900 };
const PHONE = { width: 375, height: 812 };
const PHONES = [PHONE, { width: 390, height: 844 }];

let data;
let browser;
let quickstart;

before(async () => {
  assert.ok(PROGRAM, "set MILLSTREAM_BIN to the program, such as target/debug/millstream");
  mkdirSync(SCREENSHOTS, { recursive: true });
  data = mkdtempSync(join(tmpdir(), "millstream-browser-"));
  quickstart = await start(["quickstart", "--rate", "20000", "--data", data]);
  browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: BROWSER_FLAGS });
});

after(async () => {
  await browser?.close();
  await quickstart?.stop();
  if (data) rmSync(data, { recursive: true, force: true });
});

// A program that the kernel kills when this process ends, also by SIGKILL.
function spawnWithParent(program, arguments_, options) {
  const start = '[ "$PPID" = "$0" ] && exec "$@"';
  const words = ["--pdeathsig", "KILL", "--", "sh", "-c", start, String(process.pid), program, ...arguments_];
  return spawn("setpriv", words, options);
}

// Starts the program, which says where it serves.
async function start(command) {
  const arguments_ = [...command, "--http", "127.0.0.1:0"];
  const child = spawnWithParent(PROGRAM, arguments_, { stdio: ["ignore", "ignore", "pipe"] });
  const exited = once(child, "exit");
  const told = [];
  const url = await new Promise((resolve, reject) => {
    const giveUp = (why) => reject(new Error(`${why}; it said:\n${told.join("\n")}`));
    const timer = setTimeout(giveUp, START_MS_MAX, "the program did not say where it serves");
    child.on("error", giveUp);
    child.on("exit", (code) => giveUp(`the program ended with ${code}`));
    // Read on forever: a full pipe would block the program.
    createInterface(child.stderr).on("line", (line) => {
      told.push(line);
      const found = line.match(/watch it at (http:\/\/\S+)/);
      if (!found) return;
      clearTimeout(timer);
      resolve(found[1]);
    });
  });
  const stop = async () => {
    child.kill("SIGTERM");
    await exited;
  };
  return { url, told, stop };
}

// Opens the page, and collects its violations.
async function open(options, prepare = async () => {}, { url } = quickstart) {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  const foreign = [];
  const errors = [];
  page.on("request", (request) => {
    const { origin, protocol } = new URL(request.url());
    if (origin !== new URL(url).origin && protocol !== "data:") foreign.push(request.url());
  });
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) errors.push(message.text());
  });
  page.on("pageerror", (error) => errors.push(String(error)));
  await prepare(page);
  await page.goto(url);
  const checkBehaviour = async () => {
    assert.deepEqual(foreign, []);
    assert.deepEqual(errors, []);
    await context.close();
  };
  return { page, checkBehaviour };
}

// Checks on phones that the page needs no scrolling sideways, and that no heading breaks within a word.
async function checkOnPhones(page, name) {
  for (const phone of PHONES) {
    await page.setViewportSize(phone);
    const [needed, has] = await page.evaluate(() => [document.documentElement.scrollWidth, window.innerWidth]);
    assert.equal(has, phone.width, name);
    assert.ok(needed <= has, `${name} needs ${needed} pixels of ${has}`);
    const broken = await page.locator("thead th:visible").evaluateAll((headings) =>
      headings.map((heading) => {
        const range = document.createRange();
        range.selectNodeContents(heading);
        const lines = new Set([...range.getClientRects()].map(({ top }) => Math.round(top)));
        return { text: heading.textContent, lines: lines.size };
      }).filter(({ text, lines }) => lines > text.split(" ").length));
    assert.deepEqual(broken, [], name);
    await page.screenshot({ path: join(SCREENSHOTS, `${name}-${phone.width}.png`), fullPage: true });
  }
}

const numberIn = async (locator) => Number((await locator.textContent()).replaceAll(",", ""));

async function waitUntil(what, isSo) {
  for (const end = Date.now() + COUNT_MS_MAX; Date.now() < end; ) {
    if (await isSo()) return;
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
  assert.fail(`waited in vain for: ${what}`);
}

async function waitForCampaigns(page) {
  const campaigns = page.locator("#campaigns").getByRole("rowheader");
  await waitUntil("100 campaigns", async () => (await campaigns.count()) === 100);
}

test("figures and counts of campaigns grow", async () => {
  const { page, checkBehaviour } = await open({ viewport: DESKTOP });
  await waitForCampaigns(page);
  await page.getByText("live", { exact: true }).waitFor();
  await page.getByRole("table", { name: /window that began at \d\d:\d\d:\d\d/ }).waitFor();

  const durable = page.locator("#durable_records");
  const durableBefore = await numberIn(durable);
  await waitUntil("more durable records", async () => (await numberIn(durable)) > durableBefore);
  assert.ok((await numberIn(page.locator("#records_per_second"))) > 0);

  const views = page.locator("#campaigns").getByRole("row").first().getByRole("cell").first();
  let last = await numberIn(views);
  await waitUntil("more views", async () => {
    const earlier = last;
    last = await numberIn(views);
    return earlier > 0 && last > earlier;
  });

  await page.screenshot({ path: join(SCREENSHOTS, "desktop.png") });
  await page.emulateMedia({ colorScheme: "dark" });
  await page.screenshot({ path: join(SCREENSHOTS, "desktop-dark.png") });
  await checkBehaviour();
});

// The text of all cells of the stages' table that a person can see.
const stagesOf = (page, flow) =>
  page
    .getByRole("region", { name: `Stages of ${flow}`, exact: true })
    .locator(".stages tbody tr")
    .evaluateAll((rows) => rows.map((row) => [...row.cells].slice(0, 4).map((cell) => cell.textContent)));

// The text of a flow's fact outside of its stages.
const factOf = (page, name) =>
  page.locator(".facts div").filter({ has: page.getByText(name, { exact: true }) }).locator("dd").textContent();

test("each stage of a flow shows its figures", async () => {
  const { page, checkBehaviour } = await open({ viewport: DESKTOP });
  await waitUntil("all stages have worked", async () => {
    const stages = await stagesOf(page, "ads");
    const [events, count] = stages;
    return stages.length > 1 && events[3] !== "–" && Number(count[2].replaceAll(",", "")) > 1_000;
  });
  const stages = await stagesOf(page, "ads");
  assert.deepEqual(stages.slice(0, 2).map(([name]) => name), ["events", "count"]);
  for (const [, readable, throughput, time] of stages.slice(0, 2)) {
    assert.match(readable, /^[\d,]+$/);
    assert.match(throughput, /^[\d,]+$/);
    assert.match(time, /^[\d.]+ (ns|µs|ms|s)$/);
  }
  await page.getByText(/^\d+ workers?.*; a stage that reads a stream or a file counts its chunks/).waitFor();
  // The lag of event time behind the clock, and the flow's figures outside of its stages.
  await page.getByRole("cell", { name: /^\d+(\.\d)? s ago$/ }).first().waitFor();
  await page.getByText(/^[\d,]+ offsets? of ads$/).waitFor();
  await page.getByText("0, too late for their window", { exact: true }).waitFor();
  const checkpoint = /^number [\d,]+, \d+ s ago, [\d.]+ (B|KiB) in [\d.]+ (µs|ms|s); the sources paused for [\d.]+ (µs|ms|s)/;
  await page.getByText(checkpoint).waitFor();
  assert.match(await factOf(page, "Time between checkpoints"), /^[\d.]+ (ms|s)$/);
  const state = page.getByRole("table", { name: /^State: about [\d.]+ (B|KiB|MiB) in memory$/ });
  const [totals, counts] = await state.locator("tbody tr").evaluateAll((rows) =>
    rows.map((row) => [...row.cells].map((cell) => cell.textContent)));
  assert.deepEqual(totals, ["totals", "custom", "–", "–", "whole"]);
  assert.equal(counts[0], "campaign_counts");
  assert.match(counts.slice(1).join(" "), /^windows [\d,]+ [\d.]+ (KiB|MiB) changes$/);
  const chart = page.locator(".stages polyline").first();
  await waitUntil("a chart", async () => (await chart.getAttribute("points"))?.split(" ").length > 4);
  assert.equal(await page.title(), "Millstream: ads");
  await checkBehaviour();
});

test("an application run from the command line shows its own figures", async () => {
  // Read again and again, so that there is work for as long as the test takes.
  const file = join(data, "words");
  writeFileSync(file, "an apple and a pear\n".repeat(5_000_000));
  const command = ["flow", "run", "logparser", "--stages", "separate"];
  const run = await start([...command, ...Array(300).fill(["--file", file]).flat()]);
  try {
    const { page, checkBehaviour } = await open({ viewport: DESKTOP }, undefined, run);
    const words = page.locator("#words");
    await waitUntil("words", async () => (await numberIn(words)) > 0);
    await page.getByText("live", { exact: true }).waitFor();
    assert.ok((await numberIn(page.locator("#count"))) > 0);
    assert.match(await page.locator("#bytes").textContent(), /iB$/);
    const names = (await stagesOf(page, "logparser")).map(([name]) => name);
    assert.deepEqual(names, ["read", "split", "filter", "count"]);
    // Fields that only the ads flow has must be hidden.
    assert.ok(await page.locator("#durable_records").isHidden());
    assert.ok(await page.locator("#campaigns").isHidden());
    await page.getByText(/from source to end half of the records take up to .* \([\d,]+ samples\)/).waitFor();
    await page.screenshot({ path: join(SCREENSHOTS, "logparser.png") });
    await checkBehaviour();
  } finally {
    await run.stop();
  }
});

test("a phone shows the whole page without scrolling sideways", async () => {
  for (const colorScheme of ["light", "dark"]) {
    const options = { viewport: PHONE, deviceScaleFactor: 2, isMobile: true, colorScheme };
    const { page, checkBehaviour } = await open(options);
    await waitForCampaigns(page);
    await checkOnPhones(page, `phone-${colorScheme}`);
    await checkBehaviour();
  }
});

test("names are shown as text, unknown figures as a dash, and missing ones not at all", async () => {
  const name = "<img src=x onerror=alert(1)> ".repeat(5);
  const { page, checkBehaviour } = await open({ viewport: PHONE }, async (page) => {
    await page.route("**/api/v1/overview", (route) =>
      route.fulfill({ json: { events: 5, lag_records: null } }),
    );
    await page.route("**/api/v1/flows", (route) => route.fulfill({ json: ["ads", name] }));
    await page.route("**/api/v1/flows/**", (route) => {
      const flow = decodeURIComponent(new URL(route.request().url()).pathname.split("/")[4]);
      const stages = [{ stage: flow, readable: 7, throughput: 1234.5, item_ns: 0 }];
      route.fulfill({ json: { flow, workers: 1, stages } });
    });
    await page.route("**/state/**", (route) =>
      route.fulfill({
        json: [
          { key: name, value: { window_start: 20_000, value: { views: 3 }, events: 3 } },
          { key: "older", value: { window_start: 10_000, value: { views: 9, clicks: 9 }, events: 9 } },
          { key: "nothing", value: null },
        ],
      }),
    );
  });
  await page.getByText("live", { exact: true }).waitFor();
  assert.equal(await page.locator("#events").textContent(), "5");
  assert.equal(await page.locator("#lag_records").textContent(), "–");
  assert.ok(await page.locator("#lag_records").isVisible());
  assert.ok(await page.locator("#windows").isHidden());
  const stages = await page.locator(".stages tbody tr").evaluateAll((rows) =>
    rows.map((row) => [...row.cells].map((cell) => cell.textContent)),
  );
  assert.deepEqual(stages, [
    ["ads", "7", "1,235", "–", "–", ""],
    [name, "7", "1,235", "–", "–", ""],
  ]);
  const text = await page.locator("#campaigns tr").evaluateAll((rows) =>
    rows.map((row) => [...row.cells].map((cell) => cell.textContent)),
  );
  assert.deepEqual(text, [
    [name, "3", "0", ""],
    ["nothing", "0", "0", ""],
    ["older", "0", "0", ""],
  ]);
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= window.innerWidth));
  await checkBehaviour();
});

test("the page shows the reason of a refusal", async () => {
  const { page } = await open({ viewport: DESKTOP }, async (page) => {
    await page.route("**/state/**", (route) =>
      route.fulfill({ status: 404, json: { error: 'unknown flow "ads"' } }),
    );
  });
  await page.getByText('unknown flow "ads"').waitFor();
  await page.context().close();
});

test("a node shows its streams, the damaged one first, and its groups", async (t) => {
  const data = mkdtempSync(join(tmpdir(), "millstream-browser-node-"));
  t.after(() => rmSync(data, { recursive: true, force: true }));
  const done = (words, input = "") => spawnSync(PROGRAM, words, { input, encoding: "utf8", timeout: COUNT_MS_MAX });
  for (const stream of ["orders", "clicks"]) {
    assert.equal(done(["stream", "create", stream, "--data", data]).status, 0);
    assert.equal(done(["produce", stream, "--data", data], "a\nb\nc\n").status, 0);
  }
  // The streams of the log itself have smaller numbers.
  const folders = readdirSync(join(data, "streams")).map(Number).sort((a, b) => a - b);
  const folder = join(data, "streams", String(folders.at(-2)));
  const file = join(folder, readdirSync(folder).find((name) => name.endsWith(".log")));
  const content = readFileSync(file);
  content[content.length - 3] ^= 1;
  writeFileSync(file, content);

  const node = await start(["start", "--data", data, "--listen", "127.0.0.1:0"]);
  t.after(() => node.stop());
  const [, server] = node.told.join("\n").match(/listening on (\S+),/);
  const damaged = done(["consume", "orders", "--server", server]);
  assert.notEqual(damaged.status, 0);
  const read = done(["consume", "clicks", "--server", server, "--group", "readers"]);
  assert.equal(read.stdout, "a\nb\nc\n", read.stderr);

  const { page, checkBehaviour } = await open({ viewport: DESKTOP }, undefined, node);
  const streams = page.getByRole("table", { name: "1 of 2 damaged" });
  await streams.waitFor();
  const first = streams.locator("tbody").getByRole("row").first();
  assert.match(await first.textContent(), /^orders13.*partition 0: /);
  assert.deepEqual(await page.locator(".main-figures div:visible dt").allTextContents(), [
    "Offsets/s", "Lag, in offsets", "Durable offsets",
  ]);
  const groups = page.getByRole("table", { name: "1 in all" });
  assert.match(await groups.locator("tbody").textContent(), /^readers.*clicks$/);
  await page.screenshot({ path: join(SCREENSHOTS, "node.png"), fullPage: true });
  await checkOnPhones(page, "node");
  await checkBehaviour();
});

test("long names and large figures of streams and groups fit on a phone, and are whole on wider screens", async (t) => {
  const data = mkdtempSync(join(tmpdir(), "millstream-browser-names-"));
  t.after(() => rmSync(data, { recursive: true, force: true }));
  const node = await start(["start", "--data", data, "--listen", "127.0.0.1:0"]);
  t.after(() => node.stop());
  const long = "payments.settled.by-country-and-currency.v2";
  const stream = { stream: long, partitions: 128, records: 9_876_543_210, bytes: 1_072_000_000_000 };
  const { page, checkBehaviour } = await open({ viewport: PHONE }, async (page) => {
    await page.route("**/api/v1/streams", (route) =>
      route.fulfill({ json: [
        { ...stream, faults: [{ partition: 127, fault: `the checksum of ${long}/00000000000000000042.log is wrong` }] },
        { ...stream, stream: "clicks", faults: [] },
      ] }));
    await page.route("**/api/v1/groups", (route) =>
      route.fulfill({ json: [{
        group: `${long}-readers`, members: 12, state: "CompletingRebalance", is_of_flow: false,
        streams: [{ stream: long, lag_records: 9_876_543_210 }, { stream: "clicks", lag_records: 1 }],
      }, {
        group: "unread", members: 0, state: "Empty", is_of_flow: false, streams: [],
      }] }));
  }, node);
  await page.getByText("CompletingRebalance").waitFor();
  const unread = page.locator("#group-section tbody tr").filter({ hasText: "unread" });
  assert.deepEqual(await unread.getByRole("cell").allTextContents(), ["0", "–", "Empty"]);
  await checkOnPhones(page, "node-names");
  const damage = page.locator("#stream-section tbody td.alarm");
  assert.ok((await damage.boundingBox()).width > 300, "the damage has a line of its own");
  for (const width of [600, 800, DESKTOP.width]) {
    await page.setViewportSize({ ...DESKTOP, width });
    const cut = await page.locator("tbody th:visible").evaluateAll((names) =>
      names.filter((name) => name.scrollWidth > name.clientWidth).map((name) => name.textContent));
    assert.deepEqual(cut, []);
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= window.innerWidth));
    await page.screenshot({ path: join(SCREENSHOTS, `node-names-${width}.png`), fullPage: true });
  }
  await checkBehaviour();
});

test("objectives, and how best-effort work yields to them, are a picture", async (t) => {
  const data = mkdtempSync(join(tmpdir(), "millstream-browser-pool-"));
  t.after(() => rmSync(data, { recursive: true, force: true }));
  const command = ["start", "--data", data, "--listen", "127.0.0.1:0", "--produce-objective", "50ms"];
  const node = await start(command);
  t.after(() => node.stop());
  const real = await open({ viewport: DESKTOP }, undefined, node);
  const rowOf = (page) => page.locator("#objectives tbody tr");
  await rowOf(real.page).getByText("broker/produce: 99 % within 50.0 ms").waitFor();
  await real.page.getByText(/^Slots for best-effort work in the last 5 minutes; now 100 % of \d+$/).waitFor();
  await real.checkBehaviour();

  const objective = "q: p99 within 30ms";
  const pool = {
    slots: 2,
    level: 40,
    age_seconds: 400,
    members: [
      { name: "q", class: "critical", waiting: 0, taken_seconds: 1 },
      { name: "counts", class: "best-effort", waiting: 2, taken_seconds: 2 },
    ],
    objectives: [{
      name: "q", percentile: 99, within_seconds: 0.03, latency_seconds: 0.0412, missed_alone: true,
      answered: 1234, late: 5, refused: 6, held: 1,
    }],
    decisions: [
      { at_seconds: 50, level: 80, reason: "low", objective },
      { at_seconds: 200, level: 0, reason: "missed", objective },
      { at_seconds: 340, level: 40, reason: "quiet", objective: null },
    ],
  };
  const { page, checkBehaviour } = await open({ viewport: DESKTOP }, async (page) => {
    await page.route("**/api/v1/pool", (route) => route.fulfill({ json: pool }));
  });
  await rowOf(page).getByText("even alone").waitFor();
  const shown = await rowOf(page).getByRole("cell").allTextContents();
  assert.deepEqual(shown, ["1,234", "5", "7", "41.2 ms, even alone"]);
  assert.ok(await rowOf(page).getByText("even alone").evaluate((cell) => cell.classList.contains("alarm")));
  assert.deepEqual(await page.locator("#decisions li").allTextContents(), [
    "1 min 0 s ago: 40 % of the slots for best-effort work, since no requests come",
    `3 min 20 s ago: 0 % of the slots for best-effort work, since the latency of ${objective} is above its objective`,
    "5 min 50 s ago: 80 % of the slots for best-effort work, since latencies are low",
  ]);
  const points = await page.locator("#levels polyline").getAttribute("points");
  assert.equal(points, "0,100 0,20 100,20 100,100 240,100 240,60 300,60 300,100");
  const classes = await page.locator("#members tbody tr").evaluateAll((rows) =>
    rows.map((row) => [row.cells[0], row.cells[1], row.cells[3]].map((cell) => cell.textContent)));
  assert.deepEqual(classes, [["q", "0", "latency-critical"], ["counts", "2", "best effort"]]);
  await page.locator("#pool-section").scrollIntoViewIfNeeded();
  await page.screenshot({ path: join(SCREENSHOTS, "pool.png"), fullPage: true });
  await checkOnPhones(page, "pool");
  await checkBehaviour();
});

test("members that come and go leave the slots in use of other members as they are", async () => {
  const objective = {
    name: "q", percentile: 99, within_seconds: 0.03, latency_seconds: 0.01, missed_alone: false,
    answered: 1, late: 0, refused: 0, held: 0,
  };
  let polls = 0;
  const { page, checkBehaviour } = await open({ viewport: DESKTOP }, async (page) => {
    await page.route("**/api/v1/pool", (route) => {
      polls += 1;
      const members = [{ name: "q", class: "critical", waiting: 0, taken_seconds: polls / 2 }];
      if (polls % 2) members.unshift({ name: "other", class: "critical", waiting: 0, taken_seconds: 100 });
      return route.fulfill({
        json: { slots: 2, level: 100, age_seconds: polls, members, objectives: [objective], decisions: [] },
      });
    });
  });
  await page.locator("#members tbody tr").last().getByText("0.50", { exact: true }).waitFor();
  await checkBehaviour();
});

test("a lost connection is visible, and the page comes back by itself", async () => {
  const { page } = await open({ viewport: DESKTOP });
  await waitForCampaigns(page);
  const answers = (route) => route.abort("connectionrefused");
  await page.route("**/api/**", answers);
  const lost = page.getByRole("status").getByText("connection lost, trying again");
  await lost.waitFor({ timeout: LOST_MS_MAX });
  await page.screenshot({ path: join(SCREENSHOTS, "lost.png") });
  await page.unroute("**/api/**", answers);
  await page.getByText("live", { exact: true }).waitFor({ timeout: LOST_MS_MAX });
  await page.context().close();
});
