// The live page of `millstream quickstart` in a real browser. MILLSTREAM_BIN names the program.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
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

let data;
let browser;
let quickstart;

before(async () => {
  assert.ok(PROGRAM, "set MILLSTREAM_BIN to the program, such as target/debug/millstream");
  mkdirSync(SCREENSHOTS, { recursive: true });
  data = mkdtempSync(join(tmpdir(), "millstream-browser-"));
  quickstart = await startQuickstart();
  browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: BROWSER_FLAGS });
});

after(async () => {
  await browser?.close();
  await quickstart?.stop();
  if (data) rmSync(data, { recursive: true, force: true });
});

async function startQuickstart() {
  const arguments_ = ["quickstart", "--rate", "20000", "--http", "127.0.0.1:0", "--data", data];
  const child = spawn(PROGRAM, arguments_, { stdio: ["ignore", "ignore", "pipe"] });
  const exited = once(child, "exit");
  const url = await new Promise((resolve, reject) => {
    const told = [];
    const giveUp = (why) => reject(new Error(`${why}; it said:\n${told.join("\n")}`));
    const timer = setTimeout(giveUp, START_MS_MAX, "the program did not say where it serves");
    child.on("error", giveUp);
    child.on("exit", (code) => giveUp(`the program ended with ${code}`));
    // Read on for ever: a full pipe would block the program.
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
  return { url, stop };
}

// Opens the page, and collects what it must not do.
async function open(options, prepare = async () => {}) {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  const foreign = [];
  const errors = [];
  page.on("request", (request) => {
    const { origin, protocol } = new URL(request.url());
    if (origin !== new URL(quickstart.url).origin && protocol !== "data:") foreign.push(request.url());
  });
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) errors.push(message.text());
  });
  page.on("pageerror", (error) => errors.push(String(error)));
  await prepare(page);
  await page.goto(quickstart.url);
  const checkBehaviour = async () => {
    assert.deepEqual(foreign, []);
    assert.deepEqual(errors, []);
    await context.close();
  };
  return { page, checkBehaviour };
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
  await waitUntil("100 campaigns", async () => (await page.getByRole("rowheader").count()) === 100);
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

  const views = page.getByRole("row").nth(1).getByRole("cell").first();
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

test("a phone shows all of it without scrolling sideways", async () => {
  for (const colorScheme of ["light", "dark"]) {
    const options = { viewport: PHONE, deviceScaleFactor: 2, isMobile: true, colorScheme };
    const { page, checkBehaviour } = await open(options);
    await waitForCampaigns(page);
    const isWithin = () => document.documentElement.scrollWidth <= window.innerWidth;
    assert.ok(await page.evaluate(isWithin));
    await page.screenshot({ path: join(SCREENSHOTS, `phone-${colorScheme}.png`) });
    await checkBehaviour();
  }
});

test("names are text, and what is missing is shown as a dash", async () => {
  const name = "<img src=x onerror=alert(1)> ".repeat(5);
  const { page, checkBehaviour } = await open({ viewport: PHONE }, async (page) => {
    await page.route("**/api/v1/overview", (route) => route.fulfill({ json: { events: 5 } }));
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

test("the page says what the server refuses", async () => {
  const { page } = await open({ viewport: DESKTOP }, async (page) => {
    await page.route("**/state/**", (route) =>
      route.fulfill({ status: 404, json: { error: 'unknown flow "ads"' } }),
    );
  });
  await page.getByText('unknown flow "ads"').waitFor();
  await page.context().close();
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
