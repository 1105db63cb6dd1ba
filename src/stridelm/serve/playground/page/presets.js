// Example prompts, each with what it shows.

export const PRESETS = [
  {
    name: "Counting",
    prompt: "Count from 1 to 60, separated by commas and spaces, like 1, 2, 3.",
    shows: "A prompt that pays: the model knows what comes next, so most drafts stand. Story is one that hardly does.",
  },
  {
    name: "Repeat a phrase",
    prompt: 'Write the sentence "The quick brown fox jumps over the lazy dog." ten times.',
    shows: "What was said before is said again: looking it up (the decoder ngram) is enough.",
  },
  {
    name: "JSON",
    prompt:
      "Convert to JSON: Anna is 31 and lives in Rome, Boris is 45 and lives in Oslo, Clara is 27 and lives in Bern.",
    shows: "Brackets, quotes and keys are foretold; names and numbers are looked up in the prompt.",
  },
  {
    name: "Maths",
    prompt:
      "A cinema has 14 rows of 22 seats. On Monday 195 of the seats were taken. How many were free? Show every step.",
    shows: "Worked steps have a form that the converted model foretells, and numbers that it must compute.",
  },
  {
    name: "Story",
    prompt: "Tell me a short story about a lighthouse keeper who finds a letter.",
    shows: "Free text surprises even its own model: strides are short, and auto may not draft at all.",
  },
];
