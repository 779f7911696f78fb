// A chapter full screen: predict, then see. Arrow keys and those of a presenter turn the pages.
import {useEffect, useRef, useState} from "react";
import {Figure, Player} from "./figure.jsx";
import {short, words} from "./numbers.js";
import {answer, lecture} from "./source.js";

const BACK = ["ArrowLeft", "PageUp"], ON = ["ArrowRight", "PageDown"];

export function Lecture({chapter}) {
  const [found, setFound] = useState(null), [error, setError] = useState("");
  const [page, setPage] = useState(() => Number(location.hash.slice(1)) || 0);
  useEffect(() => { lecture(chapter).then(setFound, (caught) => setError(caught.message)); }, [chapter]);
  const last = found ? 2 * found.steps.length - 1 : 0;
  const turn = (to) => { const next = Math.max(0, Math.min(last, to)); setPage(next); history.replaceState(null, "", `#${next}`); };
  useEffect(() => {
    const press = (event) => {
      const typing = event.target.matches?.("input, select") && event.target.value !== "" && event.key.startsWith("Arrow");
      if (typing || event.ctrlKey || event.altKey || event.metaKey) return;
      if (ON.includes(event.key)) turn(page + 1);
      else if (BACK.includes(event.key)) turn(page - 1);
      else if (event.key === "Home") turn(0);
      else if (event.key === "End") turn(last);
      else return;
      event.preventDefault();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, [page, last]);
  useEffect(() => { if (found) document.title = `${found.title} · shardwise`; }, [found]);
  if (error) return <main className="lecture"><p role="alert" className="error">{error}</p></main>;
  if (!found) return <p role="status" className="status">working it out</p>;
  const at = Math.min(page, last), step = found.steps[Math.floor(at / 2)];
  return (
    <main className="lecture" id="main">
      <h1>{found.title}<span> {Math.floor(at / 2) + 1} of {found.steps.length}: {at % 2 ? "see" : "predict"}</span></h1>
      {at % 2 ? <See key={at} step={step} /> : <Predict key={at} step={step} />}
      <nav className="turn" aria-label="Pages">
        <button type="button" onClick={() => turn(at - 1)} disabled={at === 0}>Back ←</button>
        <button type="button" onClick={() => turn(at + 1)} disabled={at === last}>→ {at % 2 ? "Next question" : "See"}</button>
        <button type="button" onClick={() => document.documentElement.requestFullscreen?.()}>Full screen</button>
        <a href={at % 2 ? `./#${step.view}?${new URLSearchParams(step.state)}` : `./#book?id=${step.ask}`}>Open in the page</a>
      </nav>
    </main>
  );
}

function Predict({step}) {
  const [asked, setAsked] = useState(null), [typed, setTyped] = useState(""), [error, setError] = useState("");
  const field = useRef(null);
  const ask = (mine) => answer("book", {id: step.ask, quiz: "yes", ...(mine && {answer: mine})}, false)
    .then((given) => { setAsked(given); setError(""); }, (caught) => setError(caught.message));
  useEffect(() => { ask(""); }, [step]);
  const enter = (event) => { event.preventDefault(); if (typed.trim()) { ask(typed.trim()); field.current.blur(); } };
  if (!asked) return <p role="status" className="status">{error || "working it out"}</p>;
  const [inputs, steps] = asked.tables, done = asked.right !== null, unit = asked.key[0]?.unit;
  return (
    <section className="predict" aria-label="Predict">
      <p className="question">{asked.says}</p>
      <p className="given">{inputs.rows.map(([name, value, unit]) => `${name} = ${short(value, unit)}`).join(",  ")}</p>
      <form onSubmit={enter}>
        <label>Your answer{unit && `, in ${unit}`} <input ref={field} type="text" className="box" autoComplete="off" value={typed} onChange={(event) => setTyped(event.target.value)} /></label>
        <button type="submit">Check</button>
      </form>
      {!done && <p className="given">{asked.lines[0]}</p>}
      {error && <p role="alert" className="error">{error}</p>}
      {done && <p role="status" className={asked.right ? "verdict right" : "verdict"}>{asked.right ? "Right." : "Not right."} {asked.lines[1]}</p>}
      {done && steps && <ol className="worked">{steps.rows.map(([name, formula, given, value, of]) => <li key={name}><b>{words(name)}</b> = {formula} = <b>{short(value, of)}</b>{given && <small>{given}</small>}</li>)}</ol>}
    </section>
  );
}

function See({step}) {
  const [found, setFound] = useState(null), [error, setError] = useState(""), [width, setWidth] = useState(0);
  const place = useRef(null);
  useEffect(() => {
    const stop = new AbortController();
    answer(step.view, step.state, false, stop.signal).then(setFound, (caught) => stop.signal.aborted || setError(caught.message));
    const measure = () => setWidth(Math.floor(place.current?.clientWidth ?? 0));
    measure();
    addEventListener("resize", measure);
    return () => { stop.abort(); removeEventListener("resize", measure); };
  }, [step]);
  const figure = found?.figures.find(({id}) => id === step.figure) ?? found?.figures[0];
  return (
    <section className="see" aria-label="See" ref={place}>
      <p className="question">{step.look}</p>
      {error && <p role="alert" className="error">{error}</p>}
      {!found && !error && <p role="status" className="status">working it out</p>}
      {found && width > 0 && (found.player ? <Player found={found} width={width} frame={0} turned={() => {}} /> : <Figure figure={figure} width={width} tall={innerHeight - 330} found={found} />)}
      {found?.source && <p className="formula">{found.source}</p>}
    </section>
  );
}
