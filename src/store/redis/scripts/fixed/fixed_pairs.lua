
  -- A window of another length or anchor begins anew.
  local function pairs_of(columns, kinds)
    local found = {}
    for q, kind in ipairs(kinds) do
      found[q] = take_column(columns, kind[1], kind[2]) or {0, 0, ''}
    end
    return found
  end

  return {columns_of = columns_of, pairs_of = pairs_of, others = others}
end
