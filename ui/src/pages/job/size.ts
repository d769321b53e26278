/** How large a picture is shown. Small pictures grow by whole factors, so that every pixel is an even square. */
export function shownWidth(naturalWidth: number, room: number): number {
  if (naturalWidth <= 0 || room <= 0) return Math.max(room, 0);
  const factor = Math.floor(room / naturalWidth);
  return factor >= 4 ? factor * naturalWidth : room;
}
