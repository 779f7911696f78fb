// What a search puts first: concepts and tasks, then the book, then all else. The words of
// WORDS in docs/site/seen.py are held to it.
var Scorer = {
  score: ([docname, , , , score]) => {
    const place = [["site/concepts", 300], ["site/tasks/", 200], ["site/book/", 100]];
    const found = place.find(([folder]) => docname.startsWith(folder));
    return score + (found ? found[1] : 0);
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
