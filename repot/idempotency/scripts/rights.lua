-- Checks which commands the caller may run; runs none of them.
-- ARGV pairs of a command and a key. Returns the pairs that are denied; 'unknown' on a server that cannot tell.
if not redis.acl_check_cmd then
  return 'unknown'
end
-- Commands without a key. For the others every argument is the key: some take several keys.
local KEYLESS = {time = {}, scan = {'0'}, eval = {'return 1', '0'}}
local missing = {}
for index = 1, #ARGV, 2 do
  local command, key = ARGV[index], ARGV[index + 1]
  if not redis.acl_check_cmd(command, unpack(KEYLESS[command] or {key, key, key})) then
    table.insert(missing, command)
    table.insert(missing, key)
  end
end
return missing
