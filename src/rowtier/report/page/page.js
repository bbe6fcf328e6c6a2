"use strict";
// Unpacks the data and the chart library, draws the charts, and runs the table of tables.
// Names come from users: they are only ever set as text, never as HTML.
(async () => {
  const PAGE = 25, CHIPS = 8;
  const $ = (id) => document.getElementById(id);
  const make = (tag, text, attributes = {}) => {
    const node = document.createElement(tag);
    if (text !== undefined) node.textContent = text;
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return node;
  };

  // ---- figures for people -------------------------------------------------------------
  const short = (value, digits = 3) => String(Number(value.toPrecision(digits)));
  const scaled = (value, steps, gap) => {
    for (const [unit, size] of steps) if (Math.abs(value) >= size) return short(value / size) + gap + unit;
    return short(value);
  };
  const count = (value) => scaled(value, [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]], " ");
  const bytes = (value) => scaled(value, [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10], ["B", 0]], " ");
  const percent = (value) => {
    if (value > 0 && value < 0.0005) return "<0.1%";
    return value < 1 && value > 0.9995 ? ">99.9%" : (100 * value).toFixed(1) + "%";
  };
  const unbroken = (words) => words.replace(/(\d) (?=[kMGT]\b)/g, "$1\u00a0");

  const tail = (name) => (name.length > 24 ? "…" + name.slice(-22) : name);
  // Long names may be broken after a dot, a dash, a slash or an underscore.
  const breakable = (name) => name.split(/(?<=[._/-])/).flatMap((part, i) => (i ? [make("wbr"), part] : [part]));

  // ---- unpacking ----------------------------------------------------------------------
  const unpack = async (id) => {
    const raw = Uint8Array.from(atob($(id).textContent), (letter) => letter.charCodeAt(0));
    const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  };
  const trouble = (text) => { $("trouble").textContent = text; $("trouble").hidden = false; };
  if (typeof DecompressionStream === "undefined") {
    trouble("This browser is too old to unpack the charts: Chrome 80, Firefox 113, Safari 16.4 or newer can.");
    return;
  }
  const data = JSON.parse(await unpack("packed-data"));
  const objects = (sheet) => sheet.rows.map((row) => Object.fromEntries(sheet.columns.map((name, i) => [name, row[i]])));
  const tables = objects(data.sheets.tables);
  const place = new Map(tables.map((table, index) => [table.table, index]));

  // ---- light and dark -----------------------------------------------------------------
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  try { chosen = localStorage.getItem("rowtier-theme"); } catch { /* a page from a file may have no storage */ }
  const dark = () => (chosen ? chosen === "dark" : system.matches);
  const paint = () => { document.documentElement.dataset.theme = dark() ? "dark" : "light"; };
  paint();

  // Okabe and Ito's colours, which people with colour blindness can tell apart.
  const RANGE = {
    light: ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#999999", "#b8a800"],
    dark: ["#3d9ad6", "#f0b540", "#2bbd93", "#dd96bd", "#ee7d33", "#86ccf5", "#aaaaaa", "#f0e442"],
  };
  const config = () => {
    const css = getComputedStyle(document.documentElement), color = (name) => css.getPropertyValue(name).trim();
    const text = color("--text"), soft = color("--soft"), line = color("--line");
    return {
      background: null,
      font: getComputedStyle(document.body).fontFamily,
      view: { stroke: null },
      axis: { labelColor: soft, titleColor: soft, gridColor: line, domainColor: line, tickColor: line, labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal", labelLimit: 160 },
      axisX: { grid: false }, axisXQuantitative: { grid: true }, axisYBand: { grid: false },
      legend: { labelColor: text, labelFontSize: 12, symbolSize: 110, labelLimit: 220, columnPadding: 14, padding: 0, offset: 8 },
      range: { category: RANGE[dark() ? "dark" : "light"] },
      style: { limit: { stroke: text, color: text, fill: text }, curve: { stroke: text, color: text } },
    };
  };

  // ---- charts -------------------------------------------------------------------------
  const drawn = new Map(); // element → what to draw, so that a change of theme draws it again
  const draw = async (element, name, values, label) => {
    drawn.set(element, [name, values, label]);
    const spec = { ...data.charts[name], description: label, datasets: { sheet: values } };
    const options = { renderer: "svg", actions: false, config: config(), tooltip: { theme: dark() ? "dark" : "light" } };
    await vegaEmbed(element, spec, options);
  };
  const bars = (sheet) => objects(sheet).filter((row) => row.bar !== "");
  const chart = (name) => document.querySelector(`[data-chart="${name}"]`);

  const drawUnder = async (parent, title, name, values, label) => {
    $(parent).append(make("p", title, { class: "tier" }));
    await draw($(parent).appendChild(make("div", undefined, { class: "chart" })), name, values, label);
  };

  const drawAll = async () => {
    const memory = bars(data.sheets.memory), load = bars(data.sheets.load);
    for (const tier of data.tiers) {
      const values = memory.filter((row) => row.tier === tier);
      const place = values[0].place.replace(/ \d+$/, "");
      await drawUnder("memory-charts", `${tier}, per ${place}`, `memory ${tier}`, values, `Bytes held in ${tier} against capacity`);
    }
    const who = data.holders > data.devices ? "device and server" : "device";
    for (const [kind, title] of [["memory", "memory time"], ["work", "work"], ["links", "link time"]]) {
      const values = load.filter((row) => row.kind === kind);
      if (values.length) await drawUnder("load-charts", `${title}, per ${who}`, "load", values, `Busy ${title} of every device in a step`);
    }
    if (data.sheets.links.rows.length) await draw(chart("links"), "links", objects(data.sheets.links), "Bytes through the links of each level");
    else chart("links").textContent = "One device: there are no links.";
    await draw(chart("comparison"), "comparison", objects(data.sheets.comparison), "Step time of this plan and of baselines");
  };

  // ---- curves -------------------------------------------------------------------------
  const points = (index) => {
    const { shares, points: n } = data.curves, rows = tables[index].rows;
    return shares[index].map((share, i) => ({ position: Math.pow(rows, i / (n - 1)), share: share / 1e4 }));
  };
  const bands = (index) => {
    let start = 0;
    return data.curves.cuts[index].map(([stop, served, tier, home]) => {
      const band = { start, stop, served, tier, home: data.curves.homes[home] };
      start = stop;
      return band;
    });
  };
  let current = -1;
  const choose = async (index) => {
    current = index;
    const table = tables[index], cuts = bands(index), rows = table.rows;
    $("curve-name").textContent = table.table;
    $("pick").value = table.table;
    $("previous").disabled = data.order.indexOf(index) === 0;
    $("next").disabled = data.order.indexOf(index) === data.order.length - 1;
    for (const chip of $("chips").children) chip.setAttribute("aria-pressed", String(Number(chip.dataset.index) === index));
    $("cuts").replaceChildren(...cuts.map((cut) => {
      const which = cuts.length === 1 ? "all" : cut.start === 0 ? "hottest" : cut.stop === rows ? "coldest" : "next";
      const item = make("li", `${which} ${count(cut.stop - cut.start)} rows: ${cut.home}`);
      item.append(make("small", `${percent((cut.stop - cut.start) / rows)} of the rows, ${percent(cut.served)} of the lookups`));
      return item;
    }));
    const shown = cuts.map((cut) => ({ ...cut, start: Math.max(1, cut.start), stop: Math.max(rows === 1 ? 2 : 1.0001, cut.stop), cut: cut.stop < rows }));
    await draw(chart("curve"), "curve", [...shown, ...points(index)], `Share of lookups served by the hottest rows of ${table.table}`);
  };
  const step = (by) => choose(data.order[data.order.indexOf(current) + by]);
  const startCurves = async () => {
    $("names").append(...data.order.map((index) => make("option", undefined, { value: tables[index].table })));
    $("chips").append(...data.order.slice(0, CHIPS).map((index) => {
      const chip = make("button", `${tail(tables[index].table)} ${percent(tables[index].step_share)}`, { type: "button", title: tables[index].table });
      chip.dataset.index = index;
      chip.addEventListener("click", () => choose(index));
      return chip;
    }));
    $("pick").addEventListener("focus", () => $("pick").select());
    $("pick").addEventListener("change", () => {
      const typed = $("pick").value.trim();
      const near = place.has(typed) ? place.get(typed) : data.order.find((index) => tables[index].table.toLowerCase().includes(typed.toLowerCase()));
      choose(near === undefined ? current : near);
    });
    $("previous").addEventListener("click", () => step(-1));
    $("next").addEventListener("click", () => step(1));
    await choose(data.order[0]);
  };

  // ---- the table of tables ------------------------------------------------------------
  const COLUMNS = [
    ["table", "table", (v) => v, "22%"], ["rows", "rows", count, "6%"], ["dim", "dim", String, "5%"],
    ["bytes", "size", bytes, "7%"], ["lookups_per_step", "lookups", count, "7%"],
    ["step_share", "of step", percent, "7%"], ["slow_share", "slow", percent, "6%"],
    ["unseen", "unseen", percent, "6%"], ["distinct", "distinct", count, "7%"], ["placement", "where its rows live", unbroken, "27%"],
  ];
  const TITLES = { bytes: "With optimizer state", lookups_per_step: "Per device and step", step_share: "Share of the step time", slow_share: "Share of its lookups outside the first tier", unseen: "Share of lookups to come on rows never seen so far", distinct: "Distinct rows that a step looks up, all devices together" };
  const most = Math.max(1e-9, ...tables.map((table) => table.step_share));
  const text = tables.map((table) => `${table.table} ${table.placement}`.toLowerCase());
  const state = { key: "step_share", down: true, page: 0, words: [] };
  const found = () => {
    const { key, down, words } = state;
    const hits = tables.map((_, index) => index).filter((index) => words.every((word) => text[index].includes(word)));
    const order = (a, b) => typeof a === "string" ? a.localeCompare(b, undefined, { numeric: true }) : a - b;
    return hits.sort((a, b) => (down ? -1 : 1) * order(tables[a][key], tables[b][key]) || a - b);
  };
  const row = (index) => {
    const table = tables[index], line = make("tr", undefined, { tabindex: "0", title: "Show its curve" });
    for (const [key, , say] of COLUMNS) {
      const cell = line.appendChild(make("td"));
      cell.append(...(key === "table" ? breakable(table[key]) : [say(table[key])]));
      const low = table[`${key}_low`], high = table[`${key}_high`];
      if (low !== undefined) cell.title = low === null ? "the data cannot tell how sure this is" : `${say(low)} to ${say(high)}, nine times in ten`;
      if (key === "step_share") { cell.className = "bar"; cell.style.setProperty("--share", `${100 * table[key] / most}%`); }
    }
    const show = () => { choose(index); $("curves").scrollIntoView({ behavior: "smooth" }); };
    line.addEventListener("click", () => { if (!String(getSelection())) show(); });
    line.addEventListener("keydown", (event) => { if (event.key === "Enter") show(); });
    return line;
  };
  const list = () => {
    const hits = found(), pages = Math.max(1, Math.ceil(hits.length / PAGE));
    state.page = Math.min(state.page, pages - 1);
    const from = state.page * PAGE;
    document.querySelector("#grid tbody").replaceChildren(...hits.slice(from, from + PAGE).map(row));
    $("count").textContent = hits.length === tables.length ? `${tables.length} tables` : `${hits.length} of ${tables.length} tables`;
    $("page").textContent = hits.length ? `${from + 1}–${Math.min(from + PAGE, hits.length)} of ${hits.length}` : "no table matches";
    $("pages").hidden = pages === 1 && hits.length > 0;
    $("page-back").disabled = state.page === 0;
    $("page-on").disabled = state.page === pages - 1;
    document.querySelectorAll("#grid th").forEach((head, i) => {
      const sorted = COLUMNS[i][0] === state.key;
      head.setAttribute("aria-sort", sorted ? (state.down ? "descending" : "ascending") : "none");
      head.firstChild.textContent = COLUMNS[i][1] + (sorted ? (state.down ? " ↓" : " ↑") : "");
    });
  };
  const startTable = () => {
    for (const [key, label, , width] of COLUMNS) {
      const head = document.querySelector("#grid thead tr").appendChild(make("th", undefined, { scope: "col", title: TITLES[key] || "" }));
      head.style.width = width;
      head.appendChild(make("button", label, { type: "button" })).addEventListener("click", () => {
        state.down = state.key === key ? !state.down : typeof tables[0][key] !== "string";
        state.key = key;
        state.page = 0;
        list();
      });
    }
    $("search").addEventListener("input", () => {
      state.words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
      state.page = 0;
      list();
    });
    $("page-back").addEventListener("click", () => { state.page -= 1; list(); });
    $("page-on").addEventListener("click", () => { state.page += 1; list(); });
    list();
  };

  // ---- downloads ----------------------------------------------------------------------
  const curveSheet = () => ({
    columns: ["table", "position", "share"],
    rows: tables.flatMap((table, index) => points(index).map((point) => [table.table, Number(point.position.toPrecision(6)), point.share])),
  });
  const sheetOf = (name) => (name === "curves" ? curveSheet() : data.sheets[name]);
  // A cell that starts like a formula is kept a text in spreadsheets.
  const cell = (value) => {
    if (value === null) return "";
    if (typeof value !== "string") return String(value);
    const safe = /^[=+\-@\t\r]/.test(value) ? "'" + value : value;
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  const written = (name, format) => {
    const sheet = sheetOf(name);
    if (format === "json") return JSON.stringify(objects(sheet));
    return [sheet.columns, ...sheet.rows].map((line) => line.map(cell).join(",")).join("\n") + "\n";
  };
  document.querySelectorAll("[data-sheet]").forEach((button) => button.addEventListener("click", () => {
    const { sheet, format } = button.dataset;
    const kind = format === "csv" ? "text/csv" : "application/json";
    const url = URL.createObjectURL(new Blob([written(sheet, format)], { type: kind }));
    make("a", undefined, { href: url, download: `${sheet}.${format}` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  }));

  // ---- begin --------------------------------------------------------------------------
  startTable();
  document.head.append(make("script", await unpack("packed-library")));
  await startCurves();
  await drawAll();
  const redraw = async () => {
    paint();
    for (const [element, what] of drawn) await draw(element, ...what);
  };
  $("theme").addEventListener("click", () => {
    chosen = dark() ? "light" : "dark";
    try { localStorage.setItem("rowtier-theme", chosen); } catch { /* then it holds for this visit */ }
    redraw();
  });
  system.addEventListener("change", redraw);
  document.documentElement.dataset.ready = "yes";
})().catch((error) => {
  const box = document.getElementById("trouble");
  box.textContent = `The page could not be drawn: ${error.message}`;
  box.hidden = false;
  throw error;
});
