// The points of a loader, kept in bounded memory, and rates between any two moments.

const [MOST_POINTS, FULL_SECONDS] = [1500, 600];
const COUNTERS = [1, 2, 3, 5, 7, 8, 9, 10, 11];
const NUM_VALUES = 12;

// Points are [time, items, wall, wait, queued, cpu, memory, waits for each of five causes]. Counters that restart
// continue from their last value.
export class Track {
  points = [];
  #base = new Array(NUM_VALUES).fill(0);
  #last = null;
  #spacing = 1;

  add(points) {
    for (const point of points) {
      if (this.#last && point[2] < this.#last[2]) {
        for (const place of [1, 2, 3]) this.#base[place] += this.#last[place];
      }
      this.#last = point;
      this.points.push(point.map((value, place) => value + this.#base[place]));
    }
    if (this.points.length <= MOST_POINTS) return;
    this.#thin();
    while (this.points.length > 0.8 * MOST_POINTS) {
      this.#spacing *= 2;
      this.#thin();
    }
  }

  // The last ten minutes are kept in full; older points are thinned out.
  #thin() {
    const from = this.points.at(-1)[0] - FULL_SECONDS;
    let kept = -Infinity;
    this.points = this.points.filter(([time]) => {
      if (time < from && time - kept < this.#spacing) return false;
      kept = time;
      return true;
    });
  }

  // All values at a moment: counters interpolated, the others as last reported. Null outside the points.
  at(time) {
    const { points } = this;
    if (!points.length || time < points[0][0] || time > points.at(-1)[0]) return null;
    let [low, high] = [0, points.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (points[middle][0] <= time) low = middle;
      else high = middle - 1;
    }
    const [before, after] = [points[low], points[low + 1]];
    if (!after) return before;
    const share = (time - before[0]) / (after[0] - before[0]);
    const found = [...before];
    for (const place of COUNTERS) found[place] += share * (after[place] - before[place]);
    return found;
  }

  // Between neighbouring `times`, the part [from, to) that is known: growth of items and processor time, shares of
  // waiting, and memory at its end. Null where nothing is known.
  bins(times) {
    const { points } = this;
    if (!points.length) return times.slice(1).map(() => null);
    const [first, last] = [points[0][0], points.at(-1)[0]];
    return times.slice(1).map((stop, place) => {
      const [from, to] = [Math.max(times[place], first), Math.min(stop, last)];
      if (to <= from) return null;
      const [before, after] = [this.at(from), this.at(to)];
      return {
        from,
        to,
        items: after[1] - before[1],
        wait: after[2] > before[2] ? Math.max(0, Math.min(1, (after[3] - before[3]) / (after[2] - before[2]))) : 0,
        cpu: Math.max(0, after[5] - before[5]),
        memory: after[6],
        causes: [7, 8, 9, 10, 11].map((place) =>
          after[2] > before[2] ? Math.max(0, Math.min(1, (after[place] - before[place]) / (after[2] - before[2]))) : 0
        ),
      };
    });
  }
}
