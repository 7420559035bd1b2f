/**
 * Why the waiting actions of a page wait: asked of the scheduler after the rows are shown.
 * @module
 */

export async function explainWaits() {
  const places = [.../** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("#rows [data-wait]"))];
  const address = document.getElementById("list")?.dataset.reasons;
  if (!places.length || !address) return;
  const ids = places.map((place) => place.dataset.wait).join(",");
  const answer = await fetch(`${address}?${new URLSearchParams({ ids })}`).catch(() => null);
  const { reasons, problem } = answer?.ok && !answer.redirected ? await answer.json() : { reasons: {}, problem: "not known now" };
  for (const place of places) {
    const said = reasons[place.dataset.wait ?? ""] ?? (problem ? "not known now" : "about to start");
    place.textContent = said;
    place.title = said;
    const line = place.closest("tr")?.querySelector(".ex-lead small");
    if (line && !line.textContent?.includes(said)) line.textContent += ` · ${said}`;
  }
}
