// Runs agents of @ag-ui/client: each line of the input is a command, each line of the output its result.
import { createInterface } from "node:readline";
import { HttpAgent } from "@ag-ui/client";

const agents = new Map();

function agentOf({ agent, url, thread, user }) {
  if (!agents.has(agent)) {
    agents.set(agent, new HttpAgent({ url, threadId: thread, headers: { "x-user": user } }));
  }
  return agents.get(agent);
}

async function run(command) {
  const agent = agentOf(command);
  if (command.say !== undefined) agent.addMessage({ id: crypto.randomUUID(), role: "user", content: command.say });
  const events = [];
  const result = { id: command.id, events };
  const subscriber = {
    onEvent: ({ event }) => {
      events.push(event);
      if (event.type === command.leaveAt) agent.abortRun();
    },
  };
  try {
    await agent.runAgent(command.resume ? { resume: command.resume } : {}, subscriber);
  } catch (error) {
    result.error = { message: error.message, status: error.status, payload: error.payload };
  }
  return { ...result, messages: agent.messages, state: agent.state, interrupts: agent.pendingInterrupts };
}

for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  run(command).then((result) => process.stdout.write(`${JSON.stringify(result)}\n`));
}
