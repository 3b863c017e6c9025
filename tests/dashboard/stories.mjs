// The stories of tests/dashboard, each in a new browser: `node stories.mjs STORY`. SETTINGS has the
// addresses and tokens of the nodes.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const require = createRequire(`${process.env.MODULES}/`);
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const settings = JSON.parse(process.env.SETTINGS);

const VIEWS = ["decisions", "keys", "policies", "store", "checks", "overrides", "audit"];
const WAIT = 30_000;

// ---- The browser

const faults = [];

// Opens the page. Everything that a browser complains about becomes a fault of the story.
async function open(browser, { token, hash = "", url = settings.url, allowed = [url], ...options } = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(WAIT);
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) faults.push(`console: ${message.text()}`);
  });
  page.on("pageerror", (error) => faults.push(`page: ${error.stack}`));
  page.on("dialog", (dialog) => { faults.push(`dialog: ${dialog.message()}`); dialog.dismiss(); });
  page.on("request", (request) => {
    if (!allowed.some((origin) => request.url().startsWith(`${origin}/`)) && !request.url().startsWith("data:")) faults.push(`request to ${request.url()}`);
  });
  if (token) await page.addInitScript((text) => sessionStorage.setItem("tollgate.token", text), token);
  await page.goto(`${url}/dashboard${hash}`);
  return page;
}

const isLive = (page) => page.getByText("live", { exact: true }).waitFor();
const view = (page, name) => page.locator(`#view-${name}`);
const text = (page, selector) => page.locator(selector).innerText();
const keyPath = (policy, key) => `#key?${new URLSearchParams({ policy, key })}`;

async function go(page, name) {
  await page.getByRole("navigation").getByRole("link", { name, exact: true }).click();
  await view(page, name.toLowerCase()).waitFor();
}

async function until(what, isSo, limit = WAIT) {
  const began = Date.now();
  while (!(await isSo())) {
    assert.ok(Date.now() - began < limit, `waited ${limit} ms in vain until ${what}`);
    await new Promise((done) => setTimeout(done, 50));
  }
  return Date.now() - began;
}

// A wish that only the test itself can fulfil.
const answers = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
async function wish(what) {
  console.log(`> ${what}`);
  await answers.next();
}

async function violations(page) {
  await page.evaluate(axe);
  const rules = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"];
  const { violations: found } = await page.evaluate((tags) => globalThis.axe.run(document, { runOnly: tags }), rules);
  return found.map(({ id, nodes }) => `${id}: ${nodes.map((node) => `${node.target} (${node.failureSummary})`).join("; ")}`);
}

// ---- The node

async function ask(method, path, { token = settings.admin, body, url = settings.url } = {}) {
  const headers = { ...(token && { authorization: `Bearer ${token}` }), ...(body && { "content-type": "application/json" }) };
  const response = await fetch(url + path, { method, headers, body: body && JSON.stringify(body) });
  return response.json();
}

const check = (policy, key, more = {}) => ask("POST", "/v1/check", { body: { policy, key, ...more } });
const metrics = async () => (await fetch(`${settings.url}/metrics`, { headers: { authorization: `Bearer ${settings.admin}` } })).text();
const usage = (policy, key) => ask("GET", `/v1/usage?${new URLSearchParams({ policy, key, cost: 1 })}`);

async function deny(policy, key, more = {}) {
  for (let tries = 0; tries < 50; tries += 1) {
    const decision = await check(policy, key, more);
    if (!decision.allowed) return decision;
  }
  return assert.fail(`${policy} does not deny ${key}`);
}

// ---- The stories

const stories = {
  // The page of a node under load shows a denied key, its wait, and frees it.
  async under_load(browser) {
    const page = await open(browser, { token: settings.admin });
    await isLive(page);
    const first = await text(page, "#f-checks");
    await until("the numbers move", async () => (await text(page, "#f-checks")) !== first && /^[1-9]/.test(await text(page, "#f-checks")));
    assert.match(await text(page, "#rate-table"), /denied by/);
    assert.match(await text(page, "#latency-table"), /p99\s+\d/);

    await go(page, "Keys");
    const key = "198.51.100.77";
    await deny("slow", key);
    const denied = Date.now();
    const link = page.locator("#top").getByRole("link", { name: key, exact: true });
    await link.waitFor({ timeout: 10_000 });
    console.log(`a denied key is in the table after ${Date.now() - denied} ms`);
    await page.locator("#keys-policy").selectOption("slow");
    await until("the filter leaves one policy", async () => {
      const rows = await page.locator("#top tbody tr").allInnerTexts();
      return rows.length === 1 && rows[0].includes(key);
    });
    for (const minutes of ["5 min", "15 min"]) {
      await page.locator("#minutes").getByText(minutes, { exact: true }).click();
      await link.waitFor();
    }
    await link.click();

    await page.locator("#key-says").getByText("Denied by quota 10m").waitFor();
    const wait = await page.locator("#key-left").innerText();
    const { retry_after_ms: exact } = await usage("slow", key);
    const shown = seconds(wait) * 1000;
    assert.ok(Math.abs(shown - exact) < 3000, `the page says ${wait}, the node ${exact} ms`);
    assert.match(await text(page, "#key-until"), /^until \d\d:\d\d:\d\d\.\d{3}/);
    assert.match(await text(page, "#key-quotas"), /10m[\s\S]*denies[\s\S]*3 of 3 used, 0 left/);
    const later = async () => (await page.locator("#key-left").innerText()) !== wait;
    await until("the countdown runs", later);

    await page.getByRole("button", { name: "Reset…" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Reset", exact: true }).click();
    await page.locator("#key-says").getByText("Allowed").waitFor();
    assert.equal((await check("slow", key)).allowed, true);

    await deny("slow", key);
    await page.locator("#key-says").getByText("Denied by quota 10m").waitFor();
    await page.getByRole("button", { name: "Refund…" }).click();
    await page.getByLabel("Units to give back").fill("2");
    await page.getByRole("dialog").getByRole("button", { name: "Refund", exact: true }).click();
    await page.locator("#key-says").getByText("Allowed").waitFor();
    assert.equal((await usage("slow", key)).remaining, 2);
  },

  // The page asks again when the wait ends, without a hand.
  async countdown_ends(browser) {
    const page = await open(browser, { token: settings.admin, hash: keyPath("quick", "k") });
    await page.locator("#key-says").getByText("Allowed").waitFor();
    await deny("quick", "k");
    await page.locator("#key-says").getByText("Denied").waitFor();
    await page.locator("#key-says").getByText("Allowed").waitFor();
    assert.equal(await page.locator("#key-wait").isVisible(), false);
  },

  // A key whose checks cost more than one is judged by their cost, not by cost 1.
  async costly_key(browser) {
    const page = await open(browser, { token: settings.admin });
    await isLive(page);
    for (const cost of [6, 6, 6]) await check("costly", "k", { cost });
    await go(page, "Keys");
    await page.locator("#top").getByRole("link", { name: "k", exact: true }).click();
    await page.locator("#key-says").getByText("Denied by quota 10m").waitFor();
    await page.getByText("A check of cost 6 does not fit now.").waitFor();
    await page.getByText("the median of its last checks").waitFor();
    await page.locator("#denials tbody tr").nth(1).waitFor();
    assert.match(await text(page, "#denials"), /\d\d:\d\d:\d\d\s+6\s+\d\d:\d\d:\d\d\s+6/);
    await page.locator("#key-rates").getByText("3 checks").waitFor();
    await page.locator("#key-rates").getByText("0.1 a second, 6 units").waitFor();
    await page.getByLabel("Cost of the check").fill("4");
    await page.locator("#key-says").getByText("Allowed").waitFor();
    assert.equal(new URLSearchParams(new URL(page.url()).hash.split("?")[1]).get("cost"), "4");
    await page.reload();
    await page.getByText("A check of cost 4 fits now.").waitFor();
    await page.getByLabel("Cost of the check").fill("5");
    await page.locator("#key-says").getByText("Denied").waitFor();
    assert.match(await metrics(), /tollgate_denials_total\{policy="costly",quota="10m"\} 2\n/);
  },

  // An open page moves no count of checks: they are those of the callers.
  async open_key(browser) {
    const totals = async (name, labels) => [...(await metrics()).matchAll(new RegExp(`^${name}\\{${labels}.*\\} (\\d+)$`, "gm"))].reduce((sum, [, count]) => sum + Number(count), 0);
    await deny("slow", "k");
    const page = await open(browser, { token: settings.admin, hash: keyPath("slow", "k") });
    await page.locator("#key-says").getByText("Denied by quota 10m").waitFor();
    const [length, began] = [settings.seconds * 1000, Date.now()];
    let [asked, denied] = [4, 1];
    for (; Date.now() - began < length; asked += 1) {
      if (!(await check("slow", "k")).allowed) denied += 1;
      await new Promise((done) => setTimeout(done, 900));
    }
    const read = await totals("tollgate_operations_total", `policy="slow",operation="read"`);
    const [checks, denials] = [await totals("tollgate_checks_total", ""), await totals("tollgate_denials_total", "")];
    console.log(`${settings.seconds} s: ${asked} checks of the caller, ${denied} of them denied, ${read} readings of the page; counted ${checks} checks and ${denials} denials`);
    assert.deepEqual([checks, denials], [asked, denied]);
    assert.ok(read >= settings.seconds / 2, `the page has read ${read} times`);
  },

  // Blocks a key, raises a customer's limit for a day, tries a lower one, undoes both, reads the audit.
  async evening(browser) {
    const decides = async (key) => {
      const got = await ask("POST", "/v1/check", { token: settings.other_check, url: settings.other, body: { policy: "slow", key, cost: 0 } });
      return got.reason === "deny_listed" ? "deny" : got.limit;
    };
    const page = await open(browser, { token: settings.admin });
    await isLive(page);
    await go(page, "Overrides");
    await page.locator("#overrides-policy").selectOption("slow");
    await page.getByText("No key has an override of this policy.").waitFor();
    await page.getByLabel("Match begins with").fill("key:nobody");
    await page.getByLabel("Match begins with").press("Enter");
    await page.getByText("No match begins so.").waitFor();
    await page.getByLabel("Match begins with").fill("");
    await page.getByLabel("Match begins with").press("Enter");

    // Block a key.
    const dialog = page.locator("#set");
    await page.getByRole("button", { name: "Set…" }).click();
    await dialog.getByLabel("Text").fill("abuser");
    await dialog.getByLabel("Its keys get").selectOption("deny");
    await dialog.getByLabel("Why").fill("scrapes");
    await dialog.getByRole("button", { name: "Set", exact: true }).click();
    const row = (key) => page.locator("#overrides tbody tr").filter({ has: page.getByText(key, { exact: true }) });
    await row("abuser").getByText("denied", { exact: true }).waitFor();
    await row("abuser").getByText("no end", { exact: true }).waitFor();
    await until("the other node denies the key", async () => (await decides("abuser")) === "deny");

    // Which busy keys it decides for, and who did it.
    await deny("slow", "abuser");
    await until("the row names the key", async () => (await row("abuser").getByRole("link", { name: "abuser", exact: true }).count()) === 2, 40_000);
    await row("abuser").getByRole("link", { name: "abuser", exact: true }).first().click();
    await page.locator("#key-facts").getByText(/ tokens?: scrapes|: scrapes/).waitFor();

    // Raise a customer's limit for a day, from the view of its key.
    await page.goto(`${settings.url}/dashboard${keyPath("slow", "customer")}`);
    await page.locator("#key-says").getByText("Allowed").waitFor();
    await page.getByRole("button", { name: "Override…" }).click();
    await dialog.getByLabel("Quotas, one on each line").fill("30 per 10m");
    await dialog.getByLabel("Ends").selectOption("in a day");
    await dialog.getByLabel("Why").fill("launch day");
    await dialog.getByRole("button", { name: "Set", exact: true }).click();
    await page.locator("#key-quotas").getByText("0 of 30 used").waitFor();
    await until("the other node has the limit", async () => (await decides("customer")) === 30);

    // Try a lower one: the node refuses without consent.
    await page.goto(`${settings.url}/dashboard#overrides?${new URLSearchParams({ policy: "slow", match: "key:cust" })}`);
    await row("customer").getByRole("button", { name: "Change…" }).click();
    assert.equal(await page.locator("#overrides tbody tr").count(), 1, "the filter shows one");
    await dialog.getByLabel("Quotas, one on each line").fill("2 per 10m");
    await dialog.getByRole("button", { name: "Set", exact: true }).click();
    await dialog.getByRole("alert").getByText("the quota `10m` has 2 here, and 30 there. If it is meant so, tick the box above.").waitFor();
    assert.equal(await decides("customer"), 30);
    await dialog.getByLabel("The keys may get less than they have now").check();
    await dialog.getByRole("button", { name: "Set", exact: true }).click();
    await row("customer").getByText("2 per 10m", { exact: true }).waitFor();
    await until("the other node has the lower limit", async () => (await decides("customer")) === 2);

    // Others change it meanwhile: the node says so, and the page shows it.
    await row("customer").getByRole("button", { name: "Change…" }).click();
    await ask("PUT", "/v1/overrides/slow", { body: { match: { key: "customer" }, quotas: ["4 per 10m"] } });
    await dialog.getByLabel("Quotas, one on each line").fill("40 per 10m");
    await dialog.getByRole("button", { name: "Set", exact: true }).click();
    await dialog.getByRole("alert").getByText("Somebody has changed this override meanwhile: cancel, and look at it in the list.").waitFor();
    await dialog.getByRole("button", { name: "Cancel" }).click();
    await row("customer").getByText("4 per 10m", { exact: true }).waitFor();
    await page.getByRole("button", { name: "Set…" }).click();
    await dialog.getByLabel("Text").fill("customer");
    await dialog.getByLabel("Quotas, one on each line").fill("50 per 10m");
    await dialog.getByRole("button", { name: "Set", exact: true }).click();
    await dialog.getByRole("alert").getByText("This match has an override already: cancel, and change it in the list.").waitFor();
    await dialog.getByRole("button", { name: "Cancel" }).click();

    // A fault of the form is the node's own, with its place.
    await page.getByRole("button", { name: "Set…" }).click();
    await dialog.getByLabel("Text").fill("other");
    await dialog.getByLabel("Quotas, one on each line").fill("many per 10m");
    await dialog.getByRole("button", { name: "Set", exact: true }).click();
    await dialog.getByRole("alert").getByText("/quotas/0").waitFor();
    await dialog.getByRole("button", { name: "Cancel" }).click();

    // Undo both.
    await page.getByLabel("Match begins with").fill("");
    await page.getByLabel("Match begins with").press("Enter");
    for (const key of ["abuser", "customer"]) {
      await row(key).getByRole("button", { name: "Remove…" }).click();
      await dialog.getByLabel("Why").fill("the evening is over");
      await dialog.getByRole("button", { name: "Remove", exact: true }).click();
      await row(key).waitFor({ state: "detached" });
      await until("the other node has the limit of the policy", async () => (await decides(key)) === 3);
    }

    // Read the audit.
    await go(page, "Audit");
    await page.getByLabel("Kind").selectOption("override");
    await page.locator("#audit-policy").selectOption("slow");
    await until("the audit has all changes", async () => (await page.locator("#audit tbody tr").count()) === 6);
    const acts = (await page.locator("#audit tbody tr").allInnerTexts()).map((line) => line.split("\t").map((cell) => cell.trim()));
    const told = acts.map(([, , act, , key, before, after, why]) => [act, key, before, after, why].join(" | "));
    assert.deepEqual(told, [
      "removed | key:customer | 4 per 10m | – | the evening is over",
      "removed | key:abuser | denied | – | the evening is over",
      "changed | key:customer | 2 per 10m | 4 per 10m | –",
      "changed | key:customer | 30 per 10m | 2 per 10m | launch day",
      "set | key:customer | – | 30 per 10m | launch day",
      "set | key:abuser | – | denied | scrapes",
    ]);
    assert.ok(acts.every(([, who]) => who.length > 3), JSON.stringify(acts));
    // A browser logs each refusal by itself.
    const own = faults.splice(0).filter((fault) => !/status of 4(09|22)/.test(fault));
    faults.push(...own);
  },

  // The holds of a key, with their callers; an operator ends one.
  async holds(browser) {
    for (const id of ["run-1", "run-2"]) await check("jobs", "k", { id, cost: 30, meta: `worker of ${id}` });
    const page = await open(browser, { token: settings.admin, hash: keyPath("jobs", "k") });
    await page.locator("#key-says").getByText("Denied").waitFor();
    await page.locator("#key-why").getByText("All places are in use.").waitFor();
    await page.locator("#holds-says").getByText("2 of 2 in use.").waitFor();
    await page.locator("#key-quotas").getByText("60 of 100 used, 40 left").waitFor();
    await page.locator("#holds").getByText("worker of run-2").waitFor();
    assert.match(await text(page, "#holds"), /run-1[\s\S]*30[\s\S]*(9 min|10 min)/);
    await page.locator("#holds tr", { hasText: "run-1" }).getByRole("button", { name: "End…" }).click();
    await page.getByLabel("Units that it used").fill("12");
    await page.getByRole("button", { name: "End", exact: true }).click();
    await page.locator("#said").getByText("The hold has ended, 18 units came back.").waitFor();
    await page.locator("#key-says").getByText("Allowed").waitFor();
    await page.locator("#holds-says").getByText("1 of 2 in use.").waitFor();
    await page.locator("#key-quotas").getByText("42 of 100 used, 58 left").waitFor();
    await go(page, "Decisions");
    const row = page.locator("#by-policy tr", { hasText: "jobs" });
    await until("the policy has one open hold", async () => (await row.locator("td[data-label='Open holds']").innerText()).trim() === "1");
  },

  // A log has entries, a sliding counter ticks, a list its line.
  async details(browser) {
    for (const meta of ["first", "second"]) await check("log", "k", { meta });
    await check("ticks", "k", { cost: 3 });
    const page = await open(browser, { token: settings.admin, hash: keyPath("log", "k") });
    await page.locator("#entries").getByText("second").waitFor();
    assert.match(await text(page, "#metas"), /first/);
    await page.goto(`${settings.url}/dashboard${keyPath("ticks", "k")}`);
    await page.locator("#ticks-table").getByText("3", { exact: true }).waitFor();
    await page.goto(`${settings.url}/dashboard${keyPath("listed", "mallory")}`);
    await page.locator("#key-says").getByText("Denied").waitFor();
    await page.locator("#key-why").getByText("The deny list of the policy has this key").waitFor();
    if (settings.explains) {
      await page.locator("#key-facts").getByText(/deny: .*mallory.*line \d+/).waitFor();
      await page.goto(`${settings.url}/dashboard${keyPath("listed", "tenant-7:a")}`);
      await page.locator("#key-facts").getByText(/tenant-7:.*line \d+/).waitFor();
    }
  },

  // Units, the keys that use most, and a policy's own view, whose choices are in the address.
  async units(browser) {
    const page = await open(browser, { token: settings.admin });
    await isLive(page);
    await until("units are counted", async () => /^[1-9]/.test(await text(page, "#f-units")));
    await check("log", "hungry", { cost: 90 });
    await page.locator("#by-policy").getByRole("link", { name: "log", exact: true }).click();
    await until("the policy is chosen", async () => (await page.locator("#decisions-policy").inputValue()) === "log");
    await page.locator("#range").getByText("5 min", { exact: true }).click();
    assert.match(page.url(), /#decisions\?seconds=300&policy=log$/);
    await page.reload();
    await isLive(page);
    await until("the choices are back", async () => (await page.locator("#decisions-policy").inputValue()) === "log");
    assert.ok(await page.locator("input[name=range][value='300']").isChecked());
    await page.locator("#range").getByText("6 h", { exact: true }).click();
    await page.locator("#rate-table").getByText("allowed by store").waitFor();
    assert.match(await page.locator("#rate").textContent(), /−6 h/);
    assert.match(await text(page, "#decisions-says"), /of data/);
    await go(page, "Keys");
    await page.locator("#keys-policy").selectOption("log");
    const row = page.locator("#consumers tbody tr").filter({ hasText: "hungry" });
    await row.getByText("90", { exact: true }).waitFor();
    assert.ok((await page.locator("#known-keys option").evaluateAll((all) => all.map((one) => one.value))).includes("hungry"));
    await row.getByRole("link").click();
    await page.getByText("A check of cost 90 does not fit now.").waitFor();
  },

  // Each row of the legend has its own mark, within its panel.
  async shadow(browser) {
    for (const policy of ["watched", "slow"]) for (let round = 0; round < 6; round += 1) await check(policy, "k");
    const page = await open(browser, { token: settings.admin });
    await isLive(page);
    const row = page.locator("#rate-table tbody tr");
    await row.getByText("would be denied (shadow) by pre-filter").waitFor();
    await row.getByText("denied by pre-filter", { exact: true }).waitFor();
    const marks = await row.locator("rect").evaluateAll((all) => all.map((one) => one.getAttribute("fill") ?? one.getAttribute("class")));
    assert.equal(new Set(marks).size, await row.count(), `${marks}`);
    const edge = (selector) => page.locator(selector).first().evaluate((node) => node.getBoundingClientRect().right);
    assert.ok((await edge("#rate-table")) <= (await edge(".panel:has(#rate-table)")));
    const watched = page.locator("#by-policy tr", { hasText: "watched" });
    assert.match(await watched.locator("td[data-label='Would deny a second']").innerText(), /[1-9]/);
  },

  // Cells stand beside their row headers, the checks hold still, and the theme is a choice.
  async layout(browser) {
    const page = await open(browser, { token: settings.admin, colorScheme: "light" });
    await isLive(page);
    await go(page, "Checks");
    await until("there are many checks", async () => (await page.locator("#recent tbody tr").count()) >= 40);
    await page.evaluate(() => {
      globalThis.shift = 0;
      new PerformanceObserver((list) => { for (const entry of list.getEntries()) globalThis.shift += entry.value; }).observe({ type: "layout-shift" });
    });
    const first = () => text(page, "#recent tbody tr:first-child");
    const cut = await page.locator("#recent tbody tr > :first-child").evaluateAll((all) => all.filter((one) => one.scrollWidth > one.clientWidth).length);
    assert.equal(cut, 0, "times are cut off");
    const before = await first();
    await new Promise((done) => setTimeout(done, 20_000));
    const shift = await page.evaluate(() => globalThis.shift);
    console.log(`the layout shifts by ${shift.toFixed(3)} in 20 s`);
    assert.ok(shift <= 0.1 && (await first()) !== before, `${shift} ${before}`);
    for (const name of ["Checks", "Decisions", "Keys"]) {
      await go(page, name);
      const apart = await page.locator(`#view-${name.toLowerCase()} tbody tr`).evaluateAll((rows) => rows.filter((row) => {
        const top = (cell) => { const range = document.createRange(); range.selectNodeContents(cell); return range.getBoundingClientRect().bottom; };
        const cells = [...row.cells].filter((cell) => cell.textContent.trim() && !cell.querySelector("svg, .meter"));
        return row.offsetParent && cells.some((cell) => Math.abs(top(cell) - top(cells[0])) > 6);
      }).map((row) => row.innerText));
      assert.deepEqual(apart, [], `row headers of ${name}`);
    }
    // The look-up is above the lists.
    await go(page, "Keys");
    const top = (selector) => page.locator(selector).evaluate((node) => node.getBoundingClientRect().top);
    assert.ok((await top("#look")) < (await top("#top")));
    await go(page, "Checks");
    await page.locator("#kind").getByText("Denied", { exact: true }).click();
    await page.locator("#checks-policy").selectOption("login");
    await until("only denials of the policy are left", async () => {
      const rows = await page.locator("#recent tbody tr").allInnerTexts();
      return rows.length > 0 && rows.every((row) => /denied/.test(row) && /login/.test(row));
    });
    assert.match(page.url(), /#checks\?kind=denied&policy=login$/);
    await page.locator("#recent tbody tr").first().hover();
    const held = await first();
    await new Promise((done) => setTimeout(done, 2500));
    assert.equal(await first(), held);
    const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const light = await background();
    await page.getByRole("button", { name: "Theme: as the system" }).click();
    assert.equal(await background(), light);
    await page.getByRole("button", { name: "Theme: light" }).click();
    assert.notEqual(await background(), light);
    await page.reload();
    await page.getByRole("button", { name: "Theme: dark" }).waitFor();
    assert.notEqual(await background(), light);
    await page.getByRole("link", { name: "Help" }).click();
    await page.getByText("This node knew from an earlier answer that the key has nothing left.").waitFor();
    assert.deepEqual(await violations(page), []);
  },

  async frozen_shard(browser) {
    const page = await open(browser, { token: settings.admin, hash: "#store" });
    await isLive(page);
    await until("all shards are up", async () => (await page.locator("#shards").getByText("up", { exact: true }).count()) === 3);
    await until("a server reports its memory", async () => /MiB/.test(await page.locator("#servers").innerText()));
    await wish("freeze");
    const ms = await until("the page marks a shard", async () => /down|open/.test(await page.locator("#shards").innerText()));
    console.log(`a frozen shard is visible after ${ms} ms`);
    await page.locator("#health").getByText(/shard.* down|degraded/).waitFor();
    await wish("thaw");
    await until("all shards are up again", async () => (await page.locator("#shards").getByText("closed", { exact: true }).count()) === 3);
  },

  // The banner says since when, why, and what each policy does meanwhile.
  async outage(browser) {
    const page = await open(browser, { token: settings.admin });
    await isLive(page);
    assert.equal(await page.locator("#outage").isVisible(), false);
    await wish("freeze");
    const banner = page.locator("#outage-says");
    await banner.getByText(/^All 3 shards are down since \d\d:\d\d:\d\d: .+\. Each node counts its share: costly, default, /).waitFor();
    assert.deepEqual(await violations(page), []);
    await wish("thaw");
    await until("the banner is gone", async () => !(await page.locator("#outage").isVisible()));
  },

  // Without a token that permits it no key is readable anywhere.
  async hashed_keys(browser) {
    const key = "secret-key-of-a-customer";
    await deny("slow", key);
    for (const token of settings.tokens) {
      const page = await open(browser, { token });
      await isLive(page);
      for (const name of ["Keys", "Decisions", "Policies", "Store", "Checks"]) {
        await go(page, name);
        if (name === "Keys") await page.locator("#top tbody tr").first().waitFor();
        if (name === "Checks") await page.locator("#recent tbody tr").first().waitFor();
        assert.ok(!(await page.content()).includes(key), `${name} has the key`);
      }
      await go(page, "Keys");
      assert.match(await text(page, "#keys-says"), /hashed/);
      assert.equal(await page.locator("#top a").count(), 0);
      // A person who knows the key may ask for it.
      await page.locator("#look-policy").selectOption("slow");
      await page.locator("#look-key").fill(key);
      await page.locator("#look button").click();
      await page.locator("#key-says").getByText("Denied").waitFor();
      assert.equal(await page.getByRole("button", { name: "Reset…" }).isVisible(), false);
      await page.getByText("Overrides, refunds and resets need an operator's token.").waitFor();
      await page.context().close();
    }
  },

  async embedded_store(browser) {
    const page = await open(browser, { hash: "#store" });
    await isLive(page);
    await page.getByText("so there are no shards").waitFor();
    assert.equal(await page.locator("#shards").isVisible(), false);
    await go(page, "Decisions");
    await page.getByText("No checks in this time").waitFor();
    await go(page, "Checks");
    await page.getByText("No such check was denied or slow").waitFor();
    await check("slow", "k");
    await go(page, "Decisions");
    await page.locator("#rate-table").getByText("allowed by store").waitFor();
  },

  async hostile_names(browser) {
    const keys = [
      "<img src=x onerror=\"document.title='owned'\">", "</script><script>document.title='owned'</script>",
      "x".repeat(1024), "evil\u202egpj.exe", "a\u200bb\nc\u0000d", "مفتاح-\u200f-1", "💥".repeat(256), "?policy=slow&key=other#decisions",
    ];
    for (const key of keys) await deny("slow", key);
    for (const key of keys) await check("log", "k", { meta: key.slice(0, 60) });
    for (const key of keys) {
      const set = await ask("PUT", "/v1/overrides/log", { body: { match: { key }, quotas: ["200 per 1h"], reason: [...key].slice(0, 60).join("") } });
      assert.ok(set.version, JSON.stringify(set));
    }
    const page = await open(browser, { token: settings.admin, viewport: { width: 360, height: 780 }, hash: "#keys" });
    await until("all keys are in the table", async () => (await page.locator("#top tbody tr").count()) >= keys.length);
    const noHarm = async () => {
      assert.match(await page.title(), /Tollgate/);
      assert.equal(await page.locator("main img").count(), 0);
      assert.equal(await page.locator("script").count(), 1);
      const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      assert.ok(overflow <= 0, `the page is ${overflow} px too wide`);
    };
    await noHarm();
    await page.locator("#top").getByText("evil\\u{202e}gpj.exe").waitFor();
    for (const key of keys) {
      await page.goto(`${settings.url}/dashboard${keyPath("slow", key)}`);
      await page.locator("#key-says").getByText("Denied by quota 10m").waitFor();
      await noHarm();
    }
    await page.goto(`${settings.url}/dashboard${keyPath("log", "k")}`);
    await page.locator("#entries").getByText("onerror").waitFor();
    await noHarm();
    for (const [name, part] of [["overrides?policy=log", "overrides"], ["audit?kind=override", "audit"]]) {
      await page.goto(`${settings.url}/dashboard#${name}`);
      await until(`all are in the table of ${part}`, async () => (await page.locator(`#${part} tbody tr`).count()) === keys.length);
      await page.locator(`#${part}`).getByText("evil\\u{202e}gpj.exe").first().waitFor();
      await noHarm();
    }
    await page.goto(`${settings.url}/dashboard#overrides?policy=log`);
    await page.getByRole("button", { name: "Change…" }).first().click();
    await page.locator("#set").getByRole("button", { name: "Set", exact: true }).click();
    await page.locator("#overrides-told").getByText("The override is set.").waitFor();
    await noHarm();
  },

  async keyboard_only(browser) {
    const key = "198.51.100.78";
    await deny("slow", key);
    const page = await open(browser, { token: settings.admin });
    await isLive(page);
    const focused = () => page.evaluate(() => document.activeElement.innerText || document.activeElement.id);
    // Tab until the focus is on an element with this text.
    const tabTo = async (name) => {
      for (let presses = 0; presses < 60; presses += 1) {
        await page.keyboard.press("Tab");
        const ring = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle !== "none" || document.activeElement.matches("input[type=radio]"));
        assert.ok(ring, `the focus is visible on ${await focused()}`);
        if ((await focused()) === name) return;
      }
      assert.fail(`no Tab reaches ${name}`);
    };
    await page.keyboard.press("Tab");
    assert.equal(await focused(), "Skip to the content");
    await page.keyboard.press("Enter");
    assert.equal(await focused(), "Decisions");
    await page.evaluate(() => document.activeElement.blur());
    await page.reload();
    await isLive(page);
    await tabTo("Keys");
    await page.keyboard.press("Enter");
    await view(page, "keys").waitFor();
    assert.equal(await focused(), "Keys");
    await page.locator("#top").getByText(key).waitFor();
    await tabTo(key);
    // The focus survives updates of the table.
    const before = await page.evaluate(() => performance.now());
    await until("two snapshots later", () => page.evaluate((then) => performance.now() > then + 2500, before));
    assert.equal(await focused(), key);
    await page.keyboard.press("Enter");
    await page.locator("#key-says").getByText("Denied").waitFor();
    await tabTo("Reset…");
    await page.keyboard.press("Enter");
    assert.equal(await focused(), "Cancel");
    await page.keyboard.press("Escape");
    assert.equal(await focused(), "Reset…");
    await page.keyboard.press("Enter");
    await tabTo("Reset");
    await page.keyboard.press("Enter");
    await page.locator("#key-says").getByText("Allowed").waitFor();
    assert.equal(await focused(), "Reset…");
  },

  async tokens(browser) {
    const page = await open(browser);
    await page.getByText("This node asks for a token.").waitFor();
    assert.equal(await page.evaluate(() => document.activeElement.id), "token");
    assert.deepEqual(await violations(page), []);
    const enter = async (token) => {
      await page.getByLabel("Token of this node").fill(token);
      await page.keyboard.press("Enter");
    };
    await enter("guessed");
    await page.getByRole("alert").getByText("the token is not known").waitFor();
    await enter(settings.check);
    await view(page, "decisions").waitFor();
    await isLive(page);
    // The words of the page need no node.
    await page.goto(`${settings.url}/dashboard#help`);
    await page.getByText("This node knew from an earlier answer").waitFor();
    // This node records keys, so a token for checks shows the buttons, and the node refuses.
    await deny("slow", "k");
    await page.goto(`${settings.url}/dashboard${keyPath("slow", "k")}`);
    await page.getByRole("button", { name: "Reset…" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Reset", exact: true }).click();
    await page.getByRole("alert").getByText("Nothing has changed: this call needs an admin token").waitFor();
    await page.getByRole("button", { name: "Cancel" }).click();
    await page.locator("#token-link").click();
    await page.getByRole("button", { name: "Forget the token" }).click();
    await page.getByText("This node asks for a token.").waitFor();
    assert.equal(await page.evaluate(() => sessionStorage.length), 0);
    assert.ok(!(await page.content()).includes("Denied by quota"));
    // A browser logs each 401 and 403 by itself.
    const own = faults.splice(0).filter((fault) => !/status of 40[13]/.test(fault));
    faults.push(...own);
  },

  async lost_stream(browser) {
    const page = await open(browser, { token: settings.admin });
    await isLive(page);
    await wish("stop");
    await page.locator("#lost-says").getByText(/The stream is lost: .* The numbers are \d+ s old/).waitFor();
    assert.equal(await page.locator("#health").getByText("ok", { exact: true }).count(), 0);
    const words = await page.locator("#lost-says").innerText();
    await until("the age counts", async () => (await page.locator("#lost-says").innerText()) !== words);
    assert.deepEqual(await violations(page), []);
    await wish("go on");
    await isLive(page);
    assert.equal(await page.locator("#lost").isVisible(), false);
    await page.getByRole("button", { name: "Pause" }).click();
    const frozen = await text(page, "#decisions-says");
    await new Promise((done) => setTimeout(done, 2500));
    assert.equal(await text(page, "#decisions-says"), frozen);
    await page.getByRole("button", { name: "Resume" }).click();
    await until("the page goes on", async () => (await text(page, "#decisions-says")) !== frozen);
    faults.splice(0, faults.length, ...faults.filter((fault) => !/net::ERR/.test(fault)));
  },

  async other_nodes(browser) {
    const page = await open(browser, { hash: "#policies", allowed: [settings.url, settings.other] });
    const row = page.locator("#nodes tbody tr").filter({ hasText: settings.other });
    await row.getByText("same as here").waitFor();
    await wish("change");
    await row.getByText("differ from here").waitFor();
    await page.locator("#health").getByText("1 node with other policies").waitFor();
    await wish("break");
    await page.locator("#policies-facts").getByText("failed, with 1 fault").waitFor();
    await page.locator("#faults").getByText("did you mean").waitFor();
    assert.deepEqual(await violations(page), []);
    await wish("end the other");
    await row.getByText("no answer").waitFor();
    faults.splice(0, faults.length, ...faults.filter((fault) => !/net::ERR/.test(fault)));
  },

  // The numbers of all nodes, with a row for each, and a node that ends.
  async fleet(browser) {
    const page = await open(browser, { allowed: [settings.url, settings.other] });
    await isLive(page);
    const counted = async () => Number((await text(page, "#f-checks")).replace(/\D/g, ""));
    await page.getByLabel("Numbers of").selectOption("all");
    await page.getByText(/^Of all 2 nodes/).waitFor();
    const rows = page.locator("#fleet tbody tr");
    await until("both nodes are ok", async () => (await rows.getByText("ok", { exact: true }).count()) === 2);
    // Only the other node has checks.
    for (let round = 0; round < 40; round += 1) await ask("POST", "/v1/check", { url: settings.other, token: null, body: { policy: "slow", key: `fleet-${round % 4}` } });
    await until("the sum has the checks of the other node", async () => {
      const [own, other] = await rows.allInnerTexts();
      return /[1-9]/.test(await text(page, "#by-policy")) && !/denied/.test(own) && other !== undefined && (await page.locator("#rate-table").innerText()).includes("allowed by store");
    });
    await page.locator("#rate .over title").first().waitFor({ state: "attached" });
    const words = await page.locator("#rate .over title").evaluateAll((all) => all.map((one) => one.textContent).find((one) => /allowed by store/.test(one)));
    assert.match(words, /^\d\d:\d\d:\d\d\n[\d.]+ allowed by store/);
    await until("the starts are marked", async () => (await page.locator("#rate .mark title").evaluateAll((all) => all.map((one) => one.textContent).join())).includes("start"));
    await go(page, "Keys");
    await page.locator("#top tbody tr").first().waitFor();
    assert.deepEqual(await violations(page), []);
    assert.ok((await counted()) >= 0);
    await go(page, "Decisions");
    await wish("end the other");
    await page.getByText("Of 1 node, without 1 that does not answer").waitFor();
    assert.deepEqual(await violations(page), []);
    await page.getByLabel("Numbers of").selectOption("own");
    await page.getByText(/^Of this node/).waitFor();
    faults.splice(0, faults.length, ...faults.filter((fault) => !/net::ERR/.test(fault)));
  },

  // No view violates WCAG 2.1 AA, in both themes, at both widths.
  async accessibility(browser) {
    const key = "198.51.100.79";
    const long = "long ".repeat(200);
    await deny("slow", key);
    await check("slow", long);
    await check("ticks", key);
    await check("log", key, { meta: "user-42" });
    for (const [name, grant] of [[key, { deny: true }], [long, { quotas: ["9 per 10m", "90 per 10h"], expires_in_ms: 86400000 }]]) {
      await ask("PUT", "/v1/overrides/default", { body: { match: { key: name }, reason: "a \u202e reason ".repeat(8), lower: true, ...grant } });
    }
    for (const colorScheme of ["light", "dark"]) {
      for (const width of [1280, 360]) {
        const page = await open(browser, { token: settings.admin, colorScheme, viewport: { width, height: 800 }, reducedMotion: "reduce" });
        await isLive(page);
        const clean = async (where) => {
          const found = await violations(page);
          assert.deepEqual(found, [], `${where}, ${colorScheme}, ${width} px`);
          const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
          assert.ok(overflow <= 0, `${where} is ${overflow} px too wide at ${width} px`);
          const cut = await page.evaluate(() => [...document.querySelectorAll("button")].filter((button) => {
            const [own, card] = [button, button.closest(".wide, .panel, dialog, body")].map((node) => node.getBoundingClientRect());
            return own.width > 0 && (own.left < card.left || own.right > card.right);
          }).map((button) => button.innerText));
          assert.deepEqual(cut, [], `${where} cuts buttons at ${width} px`);
        };
        for (const name of VIEWS) {
          await page.goto(`${settings.url}/dashboard#${name}${name === "overrides" ? "?policy=default" : ""}`);
          await view(page, name).waitFor();
          if (["overrides", "audit"].includes(name)) await page.locator(`#${name} tbody tr`).nth(1).waitFor();
          await clean(name);
        }
        for (const [policy, name] of [["slow", long], ["slow", key], ["ticks", key], ["log", key]]) {
          await page.goto(`${settings.url}/dashboard${keyPath(policy, name)}`);
          await page.locator("#key-name").getByText(name.trim(), { exact: true }).waitFor();
          await page.locator("#key-policy").getByText(policy).waitFor();
          await page.locator("#key-quotas .meter").first().waitFor();
          await clean(`key of ${name.length} characters of ${policy}`);
        }
        await page.getByRole("button", { name: "Refund…" }).click();
        await clean("dialog");
        await page.getByRole("button", { name: "Cancel" }).click();
        await page.goto(`${settings.url}/dashboard#overrides?policy=default`);
        await page.getByRole("button", { name: "Change…" }).first().click();
        await clean("dialog of an override");
        await page.locator("#set").getByRole("button", { name: "Cancel" }).click();
        await page.goto(`${settings.url}/dashboard#token`);
        await page.context().close();
      }
    }
  },

  // docs/integrations/dashboard-*.png
  async pictures(browser) {
    for (const [name, colorScheme, width] of [["decisions", "light", 1280], ["key", "dark", 1280], ["overrides", "light", 1280], ["decisions", "dark", 360]]) {
      const page = await open(browser, { token: settings.admin, colorScheme, viewport: { width, height: 820 }, reducedMotion: "reduce" });
      await isLive(page);
      if (name === "decisions") await until("there is a minute of data", async () => !/of data/.test(await text(page, "#decisions-says")), 120_000);
      if (name === "key") {
        await check("tenants", "tenant-7:checkout", { cost: 60 });
        await page.goto(`${settings.url}/dashboard${keyPath("tenants", "tenant-7:checkout")}`);
        await page.locator("#key-says").getByText("Denied").waitFor();
        await page.locator("#key-facts").getByText("Slot").waitFor();
      }
      if (name === "overrides") {
        const day = 86400000;
        const entries = [
          { match: { key: "198.51.100.7" }, deny: true, reason: "scrapes the search, case 4711", expires_in_ms: 7 * day },
          { match: { key: "198.51.100.40" }, quotas: ["900 per 1s", "9000 per 15s"], reason: "launch day", expires_in_ms: day },
          { match: { prefix: "tenant-7:" }, quotas: ["800 per 1s", "6000 per 15s"], reason: "contract of March" },
          { match: { prefix: "probe:" }, allow: true, reason: "the monitoring" },
        ];
        for (const body of entries) await ask("PUT", "/v1/overrides/default", { body });
        await page.goto(`${settings.url}/dashboard#overrides?policy=default`);
        await page.locator("#overrides tbody tr").nth(3).waitFor();
      }
      // The lower end of a long page adds nothing at the width of a telephone.
      await page.screenshot({ path: `${settings.folder}/dashboard-${name}-${width}-${colorScheme}.png`, fullPage: width > 600 });
      await page.context().close();
    }
  },
};

// "1 min 12 s" in seconds.
function seconds(words) {
  const units = { s: 1, min: 60, h: 3600 };
  return [...words.matchAll(/([\d.]+) (s|min|h)/g)].reduce((sum, [, count, unit]) => sum + Number(count) * units[unit], 0);
}

const [, , name] = process.argv;
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: process.getuid() === 0 ? ["--no-sandbox"] : [],
});
try {
  await stories[name](browser);
  assert.deepEqual(faults, []);
} finally {
  await browser.close();
}
process.exit(0);
