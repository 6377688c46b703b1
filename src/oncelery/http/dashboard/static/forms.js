// Copying, and choosing many.

export function offerCopies() {
  for (const button of document.querySelectorAll("[data-copy], [data-copy-from]")) button.hidden = false;
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy], [data-copy-from]");
  if (!button) return;
  const from = button.dataset.copyFrom;
  const text = from ? document.getElementById(from).textContent : button.dataset.copy;
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    // Without the permission, or over plain HTTP from elsewhere: let it be copied by hand.
    if (from) getSelection().selectAllChildren(document.getElementById(from));
    button.textContent = from ? "Selected: copy it" : "Cannot copy here";
  }
  setTimeout(() => (button.textContent = before), 1500);
});

export function offerChoosing() {
  document.addEventListener("change", (event) => {
    const form = event.target.closest("form");
    if (!form || event.target.type !== "checkbox") return;
    const boxes = [...form.querySelectorAll('input[type="checkbox"][name="letter"]')];
    if (event.target.dataset.all) for (const box of boxes) box.checked = event.target.checked;
    const chosen = boxes.filter((box) => box.checked).length;
    const all = form.querySelector("[data-all]");
    if (all) {
      all.checked = chosen > 0 && chosen === boxes.length;
      all.indeterminate = chosen > 0 && chosen < boxes.length;
    }
    const told = form.querySelector("[data-chosen]");
    if (told) told.textContent = chosen ? `${chosen} chosen` : "";
  });
}
