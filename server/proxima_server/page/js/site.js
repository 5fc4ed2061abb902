// Where the gateway is: this module lies two folders below its root, whatever prefix a proxy puts before it.
const ROOT = new URL("../../", import.meta.url);

export const address = (path) => new URL(path, ROOT);

// The message of an error answer in OpenAI's shape, or what else can be said.
export async function errorMessage(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The gateway answered ${response.status}`;
  }
}
