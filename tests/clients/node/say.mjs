// What every script needs: where the server is, and the way back to the test, one JSON object on standard output.

export const { STRIDELM_URL: url, STRIDELM_KEY: key, STRIDELM_MODEL: model } = process.env;
export const settings = JSON.parse(process.env.STRIDELM_FORMS);

// Run the part of a script that the command line names, and print what it gives.
export async function run(parts) {
  const [name, ...options] = process.argv.slice(2);
  console.log(JSON.stringify(await parts[name](...options)));
}
