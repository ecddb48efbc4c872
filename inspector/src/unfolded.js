// A drawing of a graph in which nodes are as large as the graphs that they are opened to: what stands beside, above and
// below such a node makes room.

const MARGIN = 10;
const HEAD = 26; // the name of an opened node

// `inner`: Map of the name of an opened node to its drawing.
export function unfolded(drawing, inner) {
  let { width, height, nodes, edges } = drawing;
  for (const [name, inside] of inner) {
    const node = nodes.find((one) => one.name === name);
    if (!node) continue;
    const [w, h] = [Math.max(node.w, inside.width + 2 * MARGIN), inside.height + HEAD + MARGIN];
    const [dx, dy] = [(w - node.w) / 2, (h - node.h) / 2];
    const across = (x) => (x <= node.x - node.w / 2 + 0.5 ? x : x >= node.x + node.w / 2 - 0.5 ? x + 2 * dx : x + dx);
    const down = (y) => (y <= node.y - node.h / 2 + 0.5 ? y : y >= node.y + node.h / 2 - 0.5 ? y + 2 * dy : y + dy);
    const move = (one) => (one === node ? { ...one, x: one.x + dx, y: one.y + dy, w, h, inside } : { ...one, x: across(one.x), y: down(one.y) });
    const moved = new Map(nodes.map((one) => [one.name, [one, move(one)]]));
    // Where an edge touched the box of a node, which has kept its size.
    const port = (end, x, y) => {
      const [old, now] = moved.get(end) ?? [];
      return !old || old === node ? [across(x), down(y)] : [now.x + x - old.x, now.y + y - old.y];
    };
    edges = edges.map((edge) => ({
      ...edge,
      path: bent(edge, across, down, port),
      x: edge.x == null ? edge.x : across(edge.x),
      y: edge.y == null ? edge.y : down(edge.y),
    }));
    nodes = [...moved.values()].map(([, now]) => now);
    [width, height] = [width + 2 * dx, height + 2 * dy];
  }
  return { ...drawing, width, height, nodes, edges };
}

// A path of absolute commands, each point moved, from port to port.
function bent({ path, source, target }, across, down, port) {
  let [x, y] = [0, 0];
  const commands = path.match(/[A-Z][^A-Z]*/g) ?? [];
  const parts = commands.map((command, i) => {
    const numbers = command.slice(1).trim().split(/[\s,]+/).map(Number);
    if (command[0] === "V") [y] = numbers;
    else if (command[0] === "H") [x] = numbers;
    else [x, y] = numbers.slice(-2);
    const points = command[0] === "V" || command[0] === "H" ? [x, y] : numbers;
    const text = points.map((number, place) => (place % 2 ? down(number) : across(number))).join(" ");
    if (i === 0) {
      const [fromX, fromY] = port(source, x, y);
      return far(fromX, fromY, across(x), down(y)) ? `M${fromX} ${fromY} L${text}` : `M${text}`;
    }
    return `${"VH".includes(command[0]) ? "L" : command[0]}${text}`;
  });
  const [toX, toY] = port(target, x, y);
  if (far(toX, toY, across(x), down(y))) parts.push(`L${toX} ${toY}`);
  return parts.join(" ");
}

const far = (a, b, x, y) => Math.abs(a - x) + Math.abs(b - y) > 1;
