// Several strides are drawn at once: a page that draws for every pass would take the engine's cores away.

const MILLISECONDS = 80;

/** What is added is handed to `draw` in lists, a dozen times a second; `flush` hands over what is left. */
export function gathered(draw) {
  let waiting = [];
  let timer = 0;
  const flush = () => {
    clearTimeout(timer);
    timer = 0;
    const now = waiting;
    waiting = [];
    if (now.length) draw(now);
  };
  const add = (each) => {
    waiting.push(each);
    timer ||= setTimeout(flush, MILLISECONDS);
  };
  return { add, flush };
}
