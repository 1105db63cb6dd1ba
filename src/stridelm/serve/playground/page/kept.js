// What this browser keeps. It may forbid pages to store anything: then nothing is stored, and null comes back.

export function stored(use) {
  try {
    return use(localStorage);
  } catch {
    return null;
  }
}
