// Several strides are drawn at once: drawing after every forward pass would take CPU time from the engine.

const MILLISECONDS = 80;

/** Added items are passed to `draw` in lists, a dozen times a second; `flush` passes on the rest at once. */
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
