// The page: a menu of views, controls from data, and whatever the server answers, drawn.
import {Component, useEffect, useLayoutEffect, useRef, useState} from "react";
import {createRoot} from "react-dom/client";
import {Controls} from "./controls.jsx";
import {csvOf, pageOf, save, sheetCsv, sheetHtml} from "./exports.js";
import {Figure, Player} from "./figure.jsx";
import {Lecture} from "./lecture.jsx";
import {short, typed as typedAs, words} from "./numbers.js";
import {answer, decision, exported, gives, views} from "./source.js";
import {read, write} from "./url.js";
import "./page.css";

const QUICK = 60, REST = 350; // milliseconds after a move: the first answer, the search

const NARROW = 520; // pixels of the answer on a phone
const SHEET = 820; // pixels of a window whose controls are a sheet, as in page.css

const DRAG = 1500; // milliseconds in which moves of one control are one step of the history

function App({all}) {
  const [at, setAt] = useState(() => read(all));
  const [visited, setVisited] = useState({});
  const last = useRef({name: "", time: 0}), changed = useRef(false);
  useEffect(() => {
    const follow = () => setAt(read(all));
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, [all]);
  useEffect(() => setVisited((known) => ({...known, [at.view.name]: at.state})), [at]);
  const change = (name, value, dragged = false) => {
    const state = {...at.state, [name]: value}, now = Date.now();
    const same = dragged && last.current.name === name && now - last.current.time < DRAG;
    last.current = {name, time: now};
    changed.current = true;
    history[same ? "replaceState" : "pushState"](null, "", write(at.view, state));
    setAt({view: at.view, state, frame: undefined, hash: location.hash});
  };
  const turned = (frame) => {
    history.replaceState(null, "", write(at.view, at.state, frame));
    setAt({...at, frame, hash: location.hash});
  };
  const dismiss = () => {
    history.replaceState(null, "", write(at.view, at.state, at.frame));
    setAt({...at, unknown: "", hash: location.hash});
  };
  const [found, error, waits] = useAnswer(at.view, at.state);
  useEffect(() => { document.title = `${at.view.title} · shardwise`; }, [at.view]);
  useEffect(() => { // on a phone the controls leave little room: what they changed comes into sight
    if (changed.current && innerWidth <= SHEET) document.querySelector(".answer figure svg")?.scrollIntoView({block: "nearest"});
    changed.current = false;
  }, [found]);
  return (
    <>
      <header>
        <a className="skip" href="#main" onClick={(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>Skip to the figures</a>
        <p className="brand">shardwise</p>
        {!exported() && <CopyLink />}
        <Theme />
        {!exported() && <Menu all={all} at={at.view} visited={visited} />}
      </header>
      <main id="main" tabIndex={-1}>
        <div className="side">
          <Sheet>
            <Controls key={at.view.name} view={at.view} state={at.state} change={change} only={exported() ? window.__SHARDWISE__.slider : undefined} />
          </Sheet>
        </div>
        <section className="answer" aria-label="Answer" aria-busy={waits} data-at={at.hash}>
          <h1>{at.view.title}</h1>
          <p className="what">{at.view.about}</p>
          {at.unknown && <p role="status" className="warning unknown">{at.unknown} <button type="button" onClick={dismiss}>Dismiss</button></p>}
          <p role="status" className="status">{!error && waits && <Waits key={JSON.stringify(at.state)} again={found} />}</p>
          {error && <p role="alert" className="error">{error.message}</p>}
          {error?.command && <Said title="Command" text={error.command} />}
          {found && <Drawn found={found}><Answer found={found} view={at.view} state={at.state} frame={at.frame} turned={turned} stale={Boolean(error)} change={change} /></Drawn>}
        </section>
      </main>
    </>
  );
}

// An answer that cannot be drawn is said, and the controls stay.
class Drawn extends Component {
  state = {wrong: ""};
  static getDerivedStateFromError(error) { return {wrong: error.message}; }
  componentDidUpdate(before) { if (this.state.wrong && before.found !== this.props.found) this.setState({wrong: ""}); }
  render() { return this.state.wrong ? <p role="alert" className="error">this page cannot draw the answer: {this.state.wrong}; the command says it</p> : this.props.children; }
}

// That something is worked out, and for how long by now.
function Waits({again}) {
  const [seconds, setSeconds] = useState(0);
  useEffect(() => { const ticks = setInterval(() => setSeconds((s) => s + 1), 1000); return () => clearInterval(ticks); }, []);
  const said = again ? "working it out" : "working it out: the first answer takes longest";
  return <>{said}{seconds > 0 && <span aria-hidden="true">, {seconds} s</span>}</>;
}

// The controls: beside the answer, or on a narrow screen a sheet below it that folds.
function Sheet({children}) {
  const [open, setOpen] = useState(true);
  return (
    <details className="sheet" open={open} onToggle={(event) => event.target === event.currentTarget && setOpen(event.currentTarget.open)}>
      <summary>Controls</summary>
      {children}
    </details>
  );
}

function useAnswer(view, state) {
  const [found, setFound] = useState(null), [error, setError] = useState(null), [done, setDone] = useState("");
  const asked = JSON.stringify([view.name, state]);
  useEffect(() => {
    const stop = new AbortController();
    setDone("");
    const ask = async (fine) => {
      try {
        const given = await answer(view.name, state, fine, stop.signal);
        if (stop.signal.aborted) return;
        if (given.error) throw new Error(given.error);
        setFound(given);
        setError(null);
        if (given.refines) timers.push(setTimeout(() => ask(given.refines), fine === "no" && given.figures.length ? REST : 0));
        else setDone(asked);
      } catch (caught) {
        if (stop.signal.aborted) return;
        if (fine === "quick") return void ask("yes");
        setError(caught);
        setDone(asked);
      }
    };
    const timers = [setTimeout(() => ask("no"), QUICK)];
    return () => { stop.abort(); timers.forEach(clearTimeout); };
  }, [asked]);
  return [found?.view === view.name ? found : null, error, done !== asked];
}

function Menu({all, at, visited}) {
  const here = useRef(null);
  useEffect(() => { here.current?.scrollIntoView({block: "nearest", inline: "center"}); }, [at]);
  return (
    <nav aria-label="Views">
      <ul>
        {[...new Set(all.map(({group}) => group))].map((group) => (
          <li key={group} className="of"><span>{group}</span>
            <ul>
              {all.filter((view) => view.group === group).map((view) => (
                <li key={view.name}><a ref={view === at ? here : null} href={visited[view.name] ? write(view, visited[view.name]) : `#${view.name}`} aria-current={view === at ? "page" : undefined}>{view.title}</a></li>
              ))}
            </ul>
          </li>
        ))}
      </ul>
    </nav>
  );
}

// The whole state stands in the address; it opens wherever this page runs.
function CopyLink() {
  const [copied, copy] = useCopied(() => location.href);
  return <button type="button" className="share" onClick={copy}>{copied ? "Link copied" : "Copy link"}</button>;
}

function useCopied(text) {
  const [copied, setCopied] = useState(false);
  const copy = async () => { await navigator.clipboard?.writeText(text()); setCopied(true); setTimeout(() => setCopied(false), 1500); };
  return [copied, copy];
}

function Theme() {
  const [dark, setDark] = useState(() => (kept() ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark");
  useLayoutEffect(() => { document.documentElement.dataset.theme = dark ? "dark" : "light"; }, [dark]);
  const turn = () => { keep(dark ? "light" : "dark"); setDark(!dark); };
  return <button type="button" className="theme" onClick={turn} aria-pressed={dark}>Dark</button>;
}

function kept() { try { return localStorage.getItem("theme"); } catch { return null; } }
function keep(name) { try { localStorage.setItem("theme", name); } catch { /* a page from a file may have no storage */ } }

const withUnits = (text) => text.replace(/(\d) (?=[a-zµA-Z%]{1,5}\b|%)/g, "$1\u00a0"); // on one line

function Answer({found, view, state, frame, turned, stale, change}) {
  const [place, width] = useWidth();
  const first = width < NARROW && found.figures.length ? 1 : found.lines.length; // on a phone the figure comes before the rest
  const lines = found.lines.filter(Boolean).map((line) => <p key={line} className="line">{line}</p>);
  const next = found.links.filter((one) => !one.lecture || gives()); // a lecture needs the server
  const key = found.key.length > 0 && <Key figures={found.key} />;
  return (
    <div className={stale ? "stale" : ""} ref={place}>
      {found.says && <p className="says">{withUnits(found.says)}</p>}
      <Score found={found} />
      {!found.player && key}
      {lines.slice(0, first)}
      {width > 0 && found.player && <Player found={found} width={width} frame={frame} turned={turned} />}
      {found.player && key}
      {width > 0 && <div className="figures">{found.figures.map((figure) => (
        <Figure key={figure.id} figure={figure} width={figureWidth(width, figure, found.figures)} found={found} />
      ))}</div>}
      {lines.slice(first)}
      <div className="tables">{found.tables.map((table) => <Table key={table.title} table={table} given={state[table.edits]} change={exported() ? undefined : (words) => change(table.edits, words)} />)}</div>
      {next.length > 0 && <ul className="links" aria-label="Next">{next.map((one) => <li key={one.text}><a href={one.lecture ? `?lecture=${one.lecture}` : `#${one.view}?${new URLSearchParams(one.state)}`}>{one.text}</a></li>)}</ul>}
      {found.warnings.map((line) => <p key={line} className="warning">{line}</p>)}
      {found.formula && <p className="formula"><b>Formula</b> {found.formula}</p>}
      {found.source && <p className="formula"><b>Source</b> {found.source}</p>}
      <Said title="Command" text={found.commands.join("\n")} />
      <Said title="Python" text={found.python} />
      <Save found={found} view={view} state={state} />
    </div>
  );
}

// Two in a row; one that needs it has a row for itself, and the first where they are odd.
function figureWidth(width, figure, all) {
  const halves = all.filter((one) => !one.wide);
  const alone = figure.wide || (halves.length % 2 === 1 && figure === halves[0]);
  return width > 760 && !alone ? (width - GAP) / 2 : width;
}
const GAP = 16; // pixels between two figures, as in page.css

// The numbers to read first.
function Key({figures}) {
  return (
    <dl className="key-figures">
      {figures.map(({label, value, unit, note}) => <div key={label}><dt>{label}</dt><dd><b>{large(value, unit)}</b>{note && <small>{note}</small>}</dd></div>)}
    </dl>
  );
}
const large = (value, unit) => (Number.isInteger(value) && !unit ? value.toLocaleString("en") : short(value, unit));

function useWidth() {
  const place = useRef(null);
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const measure = () => setWidth(Math.floor(place.current.clientWidth));
    const seen = new ResizeObserver(measure);
    seen.observe(place.current);
    measure();
    return () => seen.disconnect();
  }, []);
  return [place, width];
}

// Questions of this visit that were right at the first try.
const tried = new Map();
function Score({found}) {
  if (found.right === null || found.right === undefined) return null;
  const asked = found.state.id;
  if (!tried.has(asked)) tried.set(asked, found.right);
  const right = [...tried.values()].filter(Boolean).length;
  return <p className={found.right ? "verdict right" : "verdict"} role="status">{found.right ? "Right." : "Not right."} {right} of {tried.size} at the first try.</p>;
}

// The words of a control that takes NAME=VALUE, with one of them changed.
function withWord(given, name, value) {
  const others = (given ?? "").split(/\s+/).filter((word) => word && !word.startsWith(`${name}=`));
  return [...others, `${name}=${value}`].join(" ");
}

// A whole number without a unit has all of its digits.
const inTable = (value, unit) => (!unit && Number.isInteger(value) && Math.abs(value) < 1e7 ? value.toLocaleString("en") : short(value, unit));

// Long names may break after a slash.
const broken = (cell) => (cell.length < 30 ? cell : cell.split(/(?<=\/)/).flatMap((part, i) => (i ? [<wbr key={i} />, part] : [part])));

function Typed({name, value, enter}) {
  const shown = typedAs(String(value)), [typed, setTyped] = useState(shown);
  useEffect(() => setTyped(shown), [shown]);
  const done = () => { if (typed.trim() && typed !== shown) enter(typed.trim()); };
  return <input type="text" className="typed" aria-label={name} value={typed} onChange={(event) => setTyped(event.target.value)} onBlur={done} onKeyDown={(event) => { if (event.key === "Enter") done(); }} />;
}

// Whether a column has numbers alone, which then stand below each other.
const counted = (table, units, j) => j > 0 && !units && !table.edits && table.rows.every((row) => typeof row[j] === "number" || row[j] === null || row[j] === "");

function Table({table, given, change}) {
  if (table.header.length === 1) {
    return (
      <section className="list" aria-label={table.title}>
        <h2>{table.title}</h2>
        <ul>{table.rows.map(([line], i) => <li key={i}>{line}</li>)}</ul>
      </section>
    );
  }
  const units = table.header.at(-1) === "unit";
  const header = units ? table.header.slice(0, -1) : table.header;
  return (
    <div className="table" tabIndex={0} role="region" aria-label={table.title}>
      <table>
        <caption>{table.title}</caption>
        <thead><tr>{header.map((name, i) => <th key={i} scope="col" className={counted(table, units, i) ? "number" : undefined}>{words(name) || "name"}</th>)}</tr></thead>
        <tbody>
          {table.rows.map((row, i) => (
            <tr key={i}>{header.map((name, j) => {
              if (table.edits && change && name === "value" && typeof row[j] === "number") {
                return <td key={j}><Typed name={row[0]} value={row[j]} enter={(to) => change(withWord(given, row[0], to))} /></td>;
              }
              const cell = inTable(row[j], units ? (name === "ratio" ? "" : row.at(-1) ?? "") : table.units[name] ?? "");
              return j ? <td key={j} className={counted(table, units, j) ? "number" : typeof row[j] === "number" ? "digits" : cell.length < 30 ? "short" : ""}>{broken(cell)}</td> : <th key={j} scope="row" className={cell.length < 30 ? "short" : ""}>{table.header[0] ? cell : words(cell)}</th>;
            })}</tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Said({title, text}) {
  const [copied, copy] = useCopied(() => text);
  return (
    <div className="said">
      <h2>{title}</h2>
      <button type="button" onClick={copy}>{copied ? "Copied" : `Copy ${title === "Python" ? "Python" : "command"}`}</button>
      <pre tabIndex={0} aria-label={title}>{text.split(/(\s)/).map((word, i) => (word.length < 32 ? <span key={i}>{word}</span> : word))}</pre>
    </div>
  );
}

function Save({found, view, state}) {
  const sliders = view.controls.filter(({kind}) => kind === "slider");
  const [slider, setSlider] = useState(sliders[0]?.name ?? "");
  const [said, setSaid] = useState("");
  const name = (end) => `shardwise-${view.name}.${end}`;
  const page = async () => {
    const made = await pageOf(view, state, slider, (i, count) => setSaid(`position ${i + 1} of ${count}`));
    save(name("html"), made, "text/html");
    setSaid("");
  };
  const sheet = async (end, type, made) => {
    try {
      const rows = await decision(view.name, state, found.growths, (i, count) => setSaid(`decision sheet: ${i + 1} of ${count}`));
      save(`shardwise-${view.name}-decision.${end}`, made(view, found, rows), type);
      setSaid("");
    } catch (error) {
      setSaid(error.message);
    }
  };
  return (
    <div className="save" role="group" aria-label="Save">
      <button type="button" onClick={() => save(name("csv"), csvOf(found), "text/csv")}>CSV</button>
      {gives() && <button type="button" onClick={page}>One HTML file</button>}
      {gives() && sliders.length > 0 && (
        <label>with every
          <select value={slider} onChange={(event) => setSlider(event.target.value)} aria-label="Slider of the saved page">
            {sliders.map((one) => <option key={one.name} value={one.name}>{one.label}</option>)}
          </select>
        </label>
      )}
      {gives() && found.growths?.length > 0 && found.says && (
        <span className="sheets">Decision sheet <span className="about">(chips x price x growth)</span>
          <button type="button" onClick={() => sheet("html", "text/html", sheetHtml)} aria-label="Decision sheet as HTML">HTML</button>
          <button type="button" onClick={() => sheet("csv", "text/csv", sheetCsv)} aria-label="Decision sheet as CSV">CSV</button>
        </span>
      )}
      {gives() && found.planned && found.says && <a className="trace" href={`api/plan/${view.name}?${new URLSearchParams(state)}`} download>Plan file</a>}
      {gives() && found.traced && <a className="trace" href={`api/trace/${view.name}?${new URLSearchParams(state)}`} download>Trace for Perfetto</a>}
      <span role="status">{said}</span>
    </div>
  );
}

const root = createRoot(document.getElementById("root"));
const chapter = new URLSearchParams(location.search).get("lecture");
if (chapter) document.documentElement.dataset.theme = kept() ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
if (chapter) root.render(<Lecture chapter={chapter} />);
else views().then((all) => root.render(<App all={all} />), (error) => root.render(<p role="alert" className="error">{error.message}</p>));
